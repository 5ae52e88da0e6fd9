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

// notifications/tasks/partial is in no official schema; its blocks are.
func TestPartialGolden(t *testing.T) {
	const id = shim.ID("7d0f3c1e-0a5b-4c8e-9f21-3b6a52d1c0aa")
	content := json.RawMessage(`[{"type":"text","text":"\u003cone>"}, {"type":"text","text":"3/10","_meta":{"dev.taskgate/progress":{"progress":3,"total":10}}}]`)
	golden(t, "ext", "partial", dialect.Ext.Partial(id, 0, content))
	golden(t, "legacy", "partial", dialect.Legacy.Partial(id, 41, content))
	for b := range jsonrpc.Elements(content) {
		schematest.Validate(t, mcp.Version20251125, "ContentBlock", b)
	}
}
