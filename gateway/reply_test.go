package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	for _, c := range []struct {
		name   string
		err    error
		era    mcp.Era
		code   int64
		status int
		data   string
	}{
		{"unknown task", wrap(shim.ErrNotFound), mcp.Modern, -32602, 0, ""},
		{"unknown task", shim.ErrNotFound, mcp.Legacy, -32602, 0, ""},
		{"ended", shim.ErrFinal, mcp.Legacy, -32602, 0, ""},
		{"cursor", shim.ErrCursor, mcp.Legacy, -32602, 0, ""},
		{"needs a task", wrap(shim.ErrNeedsTask), mcp.Modern, -32021, 400, `{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`},
		{"needs a task", shim.ErrNeedsTask, mcp.Legacy, -32601, 0, ""},
		{"forbids a task", shim.ErrForbidsTask, mcp.Legacy, -32601, 0, ""},
		{"store", wrap(shim.ErrUnavailable), mcp.Modern, -32603, 0, ""},
		{"draining", shim.ErrDraining, mcp.Modern, -32603, 0, `{"retryAfterMs":1000}`},
		{"cancelled", context.Canceled, mcp.Legacy, -32603, 0, ""},
		{"cancelled", shim.ErrCancelled, mcp.Legacy, -32603, 0, ""},
		{"deadline", context.DeadlineExceeded, mcp.Modern, -32603, 0, ""},
		{"busy", &shim.BusyError{Limit: "x", RetryAfter: 1500 * time.Millisecond}, mcp.Modern, -32603, 0, `{"retryAfterMs":1500}`},
		{"upstream", &shim.UpstreamError{Message: "m", Err: errors.New("10.0.0.1")}, mcp.Modern, -32603, 0, ""},
		{"upstream", &shim.UpstreamError{Message: "m", RetryAfterMs: 7}, mcp.Legacy, -32603, 0, `{"retryAfterMs":7}`},
		{"anything", errors.New("10.0.0.1"), mcp.Modern, -32603, 0, ""},
		{"own", methodNotFound("x"), mcp.Modern, -32601, 404, ""},
		{"answered", rpc(-32602), mcp.Modern, -32602, 0, `{"a":1.0}`},
		{"answered", rpc(-32002), mcp.Modern, -32602, 0, `{"a":1.0}`},
		{"answered", rpc(-32002), mcp.Legacy, -32002, 0, `{"a":1.0}`},
		{"answered", rpc(-32042), mcp.Modern, -32603, 0, `{"original":{"code":-32042,"message":"m","data":{"a":1.0}}}`},
		{"answered", rpc(-32042), mcp.Legacy, -32042, 0, `{"a":1.0}`},
		{"answered", rpc(-32099), mcp.Modern, -32603, 0, `{"original":{"code":-32099,"message":"m","data":{"a":1.0}}}`},
		{"answered", rpc(-32020), mcp.Modern, -32603, 0, ""},
		{"answered", rpc(-32021), mcp.Legacy, -32603, 0, ""},
		{"answered", rpc(-32022), mcp.Modern, -32603, 0, ""},
		{"answered", rpc(-32019), mcp.Modern, -32019, 0, `{"a":1.0}`},
	} {
		f := failureOf(c.era, c.err)
		if f.Code != c.code || f.Status != c.status || string(f.Data) != c.data {
			t.Errorf("%s (%s): %d %d %s", c.name, c.era, f.Code, f.Status, f.Data)
		}
		if strings.Contains(f.Message, "10.0.0.1") {
			t.Errorf("%s: the text says too much: %s", c.name, f.Message)
		}
		if c.era == mcp.Modern && mcp.Reserved(f.Code) && f.Status != http.StatusBadRequest {
			t.Errorf("%s: a reserved code with status %d", c.name, f.Status)
		}
	}
}
