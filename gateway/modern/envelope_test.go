package modern

import (
	"net/http"
	"strings"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// A progress token is kept with the call and repeated with each progress: one that is far
// longer than any client makes is refused.
func TestLongProgressToken(t *testing.T) {
	for size, want := range map[int]string{100: "", 1 << 20: "progressToken is too long"} {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientCapabilities":{},"progressToken":"` + strings.Repeat("x", size) + `"}}}`
		msg, err := jsonrpc.Parse([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		_, err = readEnvelope(http.Header{mcp.HeaderProtocolVersion: {"2026-07-28"}}, msg)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
