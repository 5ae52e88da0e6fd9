package modern

import (
	"errors"
	"net/http"
	"testing"

	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
)

// A client over stdio has no headers, which are nil then: nothing is compared. A client over HTTP
// that sends none is refused.
func TestHeadersOverStdio(t *testing.T) {
	msg, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"},"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	params := []mcpheader.Param{{Header: "Text", Path: []string{"text"}, Type: "string"}}
	for _, tt := range []struct {
		name   string
		header http.Header
		bad    bool
	}{{"stdio", nil, false}, {"HTTP", http.Header{}, true}} {
		q, err := readEnvelope(tt.header, msg)
		for what, err := range map[string]error{
			mcp.HeaderProtocolVersion: err,
			mcp.HeaderMethod:          checkHeader(tt.header, mcp.HeaderMethod, "method", msg.Method),
			mcp.HeaderName:            checkNameHeader(q),
			mcp.HeaderParamPrefix:     checkParamHeaders(tt.header, q.arguments, params),
		} {
			var f *wire.Failure
			if bad := errors.As(err, &f) && f.Code == mcp.CodeHeaderMismatch; bad != tt.bad {
				t.Errorf("%s, %s: %v", tt.name, what, err)
			}
		}
	}
}
