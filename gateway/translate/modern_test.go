package translate

import (
	"encoding/json"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// TestModernReply: a plain reply, which is not looked through, becomes what any other would.
func TestModernReply(t *testing.T) {
	identity := json.RawMessage(`{"name":"s","version":"1"}`)
	for _, c := range []struct {
		result       string
		plain, typed bool
	}{
		{`{}`, true, false},
		{` { "content" : [ ] } `, true, false},
		{`{"content":[{"_meta":1}],"isError":true}`, true, false},
		{`{"resultType":"complete","content":[]}`, true, true},
		{`{"content":[],"_meta":{"a":1}}`, false, false},
		{`{"resultType":"complete","requestState":"x"}`, false, true},
	} {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			for _, method := range []string{mcp.MethodToolsCall, mcp.MethodResourcesRead} {
				reply := shim.Reply{Result: json.RawMessage(c.result), Plain: c.plain, Typed: c.typed}
				got, err := ModernReply(method, era, reply, identity)
				if err != nil {
					t.Fatal(err)
				}
				want, err := ModernResult(method, era, reply.Result, identity)
				if err != nil {
					t.Fatal(err)
				}
				if string(got.Text()) != string(want.Text()) {
					t.Errorf("%s of a %v server: %s, want %s", method, era, got.Text(), want.Text())
				}
				if _, ok := jsonrpc.Get(got.Text(), "_meta", mcp.MetaServerInfo); !ok {
					t.Errorf("%s has no identity", got.Text())
				}
			}
		}
	}
}
