package dialect_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// base is a task as a store returns it.
func base(status shim.Status) shim.Task {
	created := time.Date(2026, 7, 28, 12, 0, 0, 5_000_000, time.FixedZone("CEST", 2*60*60))
	return shim.Task{
		ID: "7d0f3c1e-0a5b-4c8e-9f21-3b6a52d1c0aa", Status: status, StatusMessage: `3/10 of "<all>"`,
		CreatedAt: created, UpdatedAt: created.Add(1500 * time.Millisecond),
		TTL: time.Hour, PollInterval: time.Second,
		Owner: "ann", ListKey: "p:ann", Upstream: "research", Call: json.RawMessage(`{"secret":true}`),
	}
}

func with(t shim.Task, change func(*shim.Task)) shim.Task {
	change(&t)
	return t
}

// Each spelling of each status, as golden files.
func TestExtGolden(t *testing.T) {
	result := json.RawMessage(`{ "content":[{"type":"text","text":"\u003cdone"}], "n":9007199254740993, "f":1.0,` +
		`"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"theirs"},"keep":1} }`)
	asked := []shim.Question{
		{Key: "q1", Method: "elicitation/create", Params: json.RawMessage(`{"message":"sure?","requestedSchema":{"type":"object","properties":{}}}`)},
		{Key: "q2", Method: "roots/list", Answer: json.RawMessage(`{}`)},
		{Key: "q3", Method: "sampling/createMessage", Withdraw: true},
		{Key: "q4", Method: "roots/list"},
	}
	for name, got := range map[string]json.RawMessage{
		"created":        dialect.Ext.Created(base(shim.Working)),
		"created-bare":   dialect.Ext.Created(with(base(shim.Working), func(t *shim.Task) { t.StatusMessage, t.PollInterval = "", 0 })),
		"working":        dialect.Ext.Got(mcp.Version20260728, base(shim.Working)),
		"input-required": dialect.Ext.Got(mcp.Version20260728, with(base(shim.InputRequired), func(t *shim.Task) { t.Questions = asked })),
		"completed":      dialect.Ext.Got(mcp.Version20260728, with(base(shim.Completed), func(t *shim.Task) { t.Outcome = &shim.Outcome{Result: result} })),
		"completed-with-type": dialect.Ext.Got(mcp.Version20260728, with(base(shim.Completed), func(t *shim.Task) {
			t.Outcome = &shim.Outcome{Result: json.RawMessage(`{"resultType":"complete","content":[]}`)}
		})),
		"tool-error": dialect.Ext.Got(mcp.Version20260728, with(base(shim.Completed), func(t *shim.Task) {
			t.Outcome = &shim.Outcome{IsError: true, Result: json.RawMessage(`{"content":[],"isError":true}`)}
		})),
		"failed": dialect.Ext.Got(mcp.Version20260728, failed(`{"code":-32602,"message":"bad","data":{"n":1.0}}`)),
		// Codes a modern client must not see (protocol.md 7.5).
		"failed-not-found":      dialect.Ext.Got(mcp.Version20260728, failed(`{"code":-32002,"message":"no resource","data":{"uri":"file:///x"}}`)),
		"failed-reserved":       dialect.Ext.Got(mcp.Version20260728, failed(`{"code":-32042,"message":"open a page","data":{"elicitations":[]}}`)),
		"failed-implementation": dialect.Ext.Got(mcp.Version20260728, failed(`{"code":-32003,"message":"not logged in","data":{"n":1.0}}`)),
		"cancelled":             dialect.Ext.Got(mcp.Version20260728, base(shim.Cancelled)),
		"ack":                   dialect.Ext.Ack(),
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, "ext", name, got)
			schematest.Validate(t, schematest.TasksExtension, definition(name), got)
		})
	}
}

// The one rule for error codes (protocol.md 7.5), by the client's version.
func TestErrorCode(t *testing.T) {
	const kept = 0
	for _, c := range []struct{ code, later, legacy int64 }{
		{-32001, kept, kept},
		{-32002, -32602, kept},
		{-32003, kept, kept},
		{-32004, kept, kept},
		{-32005, kept, kept},
		{-32019, kept, kept},
		{-32020, -32603, -32603},
		{-32021, -32603, -32603},
		{-32022, -32603, -32603},
		{-32042, -32603, kept},
		{-32099, -32603, kept},
		{-32602, kept, kept},
	} {
		for version, want := range map[string]int64{
			mcp.Version20260728: c.later, mcp.Version20251125: c.legacy, "": c.legacy,
		} {
			if want == kept {
				want = c.code
			}
			got, wrap := dialect.ErrorCode(version, c.code)
			if got != want || wrap != (want == -32603) {
				t.Errorf("%d to %q: %d, wrapped %v; want %d", c.code, version, got, wrap, want)
			}
		}
	}
}

// definition is what the extension's schema calls the result.
func definition(name string) string {
	switch {
	case strings.HasPrefix(name, "created"):
		return "CreateTaskResult"
	case name == "ack":
		return "CancelTaskResult"
	}
	return "GetTaskResult"
}

func failed(e string) shim.Task {
	t := base(shim.Failed)
	t.Outcome = &shim.Outcome{Error: json.RawMessage(e)}
	return t
}

// golden compares with testdata/<dir>/<name>.json, which holds the exact bytes.
func golden(t *testing.T, dir, name string, got json.RawMessage) {
	t.Helper()
	if !json.Valid(got) {
		t.Fatalf("not JSON: %s", got)
	}
	file := filepath.Join("testdata", dir, name+".json")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSuffix(string(want), "\n"), string(got)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// What belongs to the record alone never reaches a client.
func TestNothingInternalIsShown(t *testing.T) {
	for _, s := range []shim.Status{shim.Working, shim.InputRequired, shim.Completed, shim.Failed, shim.Cancelled} {
		task := base(s)
		for _, b := range []json.RawMessage{
			dialect.Ext.Created(task), dialect.Ext.Got(mcp.Version20260728, task),
			dialect.Legacy.Created(task), dialect.Legacy.Got(task), dialect.Legacy.Listed([]shim.Task{task}, ""),
		} {
			for _, secret := range []string{"ann", "research", "secret", "requestState", "related-task"} {
				if strings.Contains(string(b), secret) {
					t.Errorf("%s: %s shows %q", s, b, secret)
				}
			}
		}
	}
}
