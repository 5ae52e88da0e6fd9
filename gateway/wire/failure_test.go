package wire

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/shim"
)

// TestFailureOf is the table of protocol.md 2.5, 7.5 and L36, for both eras.
func TestFailureOf(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("shim: %w", err) }
	rpc := func(code int64) error { return &shim.RPCError{Code: code, Message: "m", Data: []byte(`{"a":1.0}`)} }
	const later, legacy = mcp.Version20260728, mcp.Version20251125
	original := func(code int64) string {
		return fmt.Sprintf(`{"original":{"code":%d,"message":"m","data":{"a":1.0}}}`, code)
	}
	for _, c := range []struct {
		name   string
		err    error
		client string
		code   int64
		status int
		data   string
	}{
		{"unknown task: the id was never given out, the task is another caller's, or its ttl is over", wrap(shim.ErrNotFound), later, -32602, 0, ""},
		{"unknown task: the id was never given out, the task is another caller's, or its ttl is over", shim.ErrNotFound, legacy, -32602, 0, ""},
		{"ended", shim.ErrFinal, legacy, -32602, 0, ""},
		{"cursor", shim.ErrCursor, legacy, -32602, 0, ""},
		{"needs a task", wrap(shim.ErrNeedsTask), later, -32021, 400, `{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`},
		{"needs a task", shim.ErrNeedsTask, legacy, -32601, 0, ""},
		{"forbids a task", shim.ErrForbidsTask, legacy, -32601, 0, ""},
		{"store", wrap(shim.ErrUnavailable), later, -32603, 0, ""},
		{"refused", shim.ErrRefused, later, -32603, 503, `{"retryAfterMs":1000}`},
		{"draining", shim.ErrDraining, later, -32603, 0, `{"retryAfterMs":1000}`},
		{"cancelled", context.Canceled, legacy, -32603, 0, ""},
		{"cancelled", shim.ErrCancelled, legacy, -32603, 0, ""},
		{"deadline", context.DeadlineExceeded, later, -32603, 0, ""},
		{"busy", &shim.BusyError{Limit: "x", RetryAfter: 1500 * time.Millisecond}, later, -32603, 0, `{"retryAfterMs":1500}`},
		{"upstream", &shim.UpstreamError{Message: "m", Err: errors.New("10.0.0.1")}, later, -32603, 0, ""},
		{"upstream", &shim.UpstreamError{Message: "m", RetryAfterMs: 7}, legacy, -32603, 0, `{"retryAfterMs":7}`},
		{"anything", errors.New("10.0.0.1"), later, -32603, 0, ""},
		{"own", MethodNotFound("x"), later, -32601, 404, ""},
		{"answered", rpc(-32602), later, -32602, 0, `{"a":1.0}`},
		{"answered", rpc(-32002), later, -32602, 0, `{"a":1.0}`},
		{"answered", rpc(-32002), legacy, -32002, 0, `{"a":1.0}`},
		{"answered", rpc(-32042), later, -32603, 0, original(-32042)},
		{"answered", rpc(-32042), legacy, -32042, 0, `{"a":1.0}`},
		{"answered", rpc(-32099), later, -32603, 0, original(-32099)},
		{"answered", rpc(-32020), later, -32603, 0, original(-32020)},
		{"answered", rpc(-32021), legacy, -32603, 0, original(-32021)},
		{"answered", rpc(-32022), later, -32603, 0, original(-32022)},
		{"answered", rpc(-32004), later, -32004, 0, `{"a":1.0}`},
		{"answered", rpc(-32001), legacy, -32001, 0, `{"a":1.0}`},
		{"answered", rpc(-32019), later, -32019, 0, `{"a":1.0}`},
	} {
		f := FailureOf(c.client, c.err)
		if f.Code != c.code || f.Status != c.status || string(f.Data) != c.data {
			t.Errorf("%s (%s): %d %d %s", c.name, c.client, f.Code, f.Status, f.Data)
		}
		if strings.Contains(f.Message, "10.0.0.1") {
			t.Errorf("%s: the text says too much: %s", c.name, f.Message)
		}
		if c.client != legacy && mcp.Reserved(f.Code) && f.Status != http.StatusBadRequest {
			t.Errorf("%s: a reserved code with status %d", c.name, f.Status)
		}
	}
	if f := FailureOf(later, &shim.UpstreamError{Message: "m", Said: "its own words"}); f.Message != "m: its own words" {
		t.Errorf("the text is %q", f.Message)
	}
}

// TestTurnAway: what a limit keeps out says by its status whose doing that is, and when to come
// again.
func TestTurnAway(t *testing.T) {
	for key, want := range map[string]int{"rate": 429, "max_things_per_owner": 429, "max_things": 503} {
		for wait, seconds := range map[time.Duration]string{time.Millisecond: "1", time.Second: "1", 1001 * time.Millisecond: "2"} {
			err := fmt.Errorf("wrapped: %w", &shim.BusyError{Key: key, Limit: "things", RetryAfter: wait})
			f := FailureOf(mcp.Version20260728, TurnAway(err))
			var busy *shim.BusyError
			if f.Status != want || f.Code != mcp.CodeInternal || f.Message != "too many things" || !errors.As(f, &busy) || busy.Key != key {
				t.Errorf("%s: %+v", key, f)
			}
			rec := httptest.NewRecorder()
			WriteFailure(rec, f)
			if rec.Code != want || rec.Header().Get("Retry-After") != seconds {
				t.Errorf("%s, %v: %d %v", key, wait, rec.Code, rec.Header())
			}
		}
	}
	if err := TurnAway(shim.ErrRefused); err != shim.ErrRefused {
		t.Errorf("another error became %v", err)
	}
	if got := retryHeader(http.StatusOK, RetryAfter(1)); got != "" {
		t.Errorf("a status of success has Retry-After %s", got)
	}
}
