package dialect_test

import (
	"encoding/json"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// The responses of a result that is streamed, as golden files. They are in no official
// schema; the blocks are, without their numbers, and the task that the first one has.
func TestSegmentsGolden(t *testing.T) {
	created := dialect.Legacy.Created(base(shim.Working), "Go on.")
	segments := dialect.Segments{ID: base(shim.Working).ID, First: 41, Blocks: []json.RawMessage{
		json.RawMessage(`{"type":"text","text":"\u003cone>"}`),
		json.RawMessage(`{"type":"image", "data":"","mimeType":"image/png","annotations":{"priority":1.0}}`),
	}}
	complete := segments
	complete.Complete = true
	first := complete
	first.First = 1
	end := dialect.Segments{ID: segments.ID, First: 43, Complete: true}
	broken := dialect.Segments{ID: segments.ID, First: 1, Complete: true, Failed: true, Reason: `no "ink"`}
	failed := broken
	failed.Reason, failed.Blocks, failed.First = "", segments.Blocks, 7
	for name, got := range map[string]json.RawMessage{
		"segments":        dialect.Legacy.Segments(segments),
		"segments-last":   dialect.Legacy.Segments(complete),
		"segments-end":    dialect.Legacy.Segments(end),
		"segments-failed": dialect.Legacy.Segments(failed),
		"segments-broken": dialect.Legacy.Segments(broken),
		"begun":           dialect.Legacy.Begun(created, first),
		"begun-broken":    dialect.Legacy.Begun(created, broken),
	} {
		golden(t, "legacy", name, got)
		if _, ok := jsonrpc.Get(got, "task"); ok {
			schematest.Validate(t, mcp.Version20251125, "CreateTaskResult", got)
		}
		list, _ := jsonrpc.Get(got, "partial-content")
		for b := range jsonrpc.Elements(list) {
			plain, err := jsonrpc.Delete(b, "seqNr")
			if err != nil {
				t.Fatal(err)
			}
			schematest.Validate(t, mcp.Version20251125, "ContentBlock", plain)
		}
	}
	if got := dialect.Legacy.Begun(created, dialect.Segments{}); string(got) != string(created) {
		t.Errorf("a bare task: %s", got)
	}
}
