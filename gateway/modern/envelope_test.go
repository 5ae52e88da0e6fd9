package modern

import (
	"fmt"
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

// Capabilities are kept with a call and with sessions at servers, so there is a bound on them, and on the answers
// that come at once.
func TestLargeEnvelopes(t *testing.T) {
	read := func(params string, capabilities int) (*request, error) {
		padding := strings.Repeat("x", capabilities-len(`{"experimental":{"x":""}}`))
		msg, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + params + `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientCapabilities":{"experimental":{"x":"` + padding + `"}}}}}`))
		if err != nil {
			t.Fatal(err)
		}
		return readEnvelope(http.Header{mcp.HeaderProtocolVersion: {"2026-07-28"}}, msg)
	}
	if _, err := read("", 64<<10); err != nil {
		t.Error(err)
	}
	if _, err := read("", 64<<10+1); err == nil || !strings.Contains(err.Error(), "clientCapabilities has more than 65536 bytes (-32602)") {
		t.Error(err)
	}
	for n, refused := range map[int]bool{64: false, 65: true} {
		var answers []string
		for i := range n {
			answers = append(answers, fmt.Sprintf(`"k%d":{}`, i))
		}
		q, err := read(`"name":"t","inputResponses":{`+strings.Join(answers, ",")+`},`, 100)
		if err != nil {
			t.Fatal(err)
		}
		got, err := q.readAnswers()
		if (err != nil) != refused || !refused && len(got) != n {
			t.Errorf("%d answers: %d, %v", n, len(got), err)
		}
	}
}
