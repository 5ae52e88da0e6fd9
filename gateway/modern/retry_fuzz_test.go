package modern

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"taskgate/gateway/sealed"
	"taskgate/gateway/translate"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// FuzzRetry takes whatever a client makes of the params of a retry (protocol.md 2.7). What
// is let through has the shape that a server may count on; a legacy server gets nothing of
// a retry, and a modern one gets it as the client wrote it, but for a state of a gateway
// behind this one, which comes back as that gave it out.
func FuzzRetry(f *testing.F) {
	for _, params := range []string{
		`{"name":"t","inputResponses":{"k":{"action":"accept"}},"requestState":"s"}`,
		`{"name":"t","inputResponses":{"k":1}}`, `{"name":"t","inputResponses":[]}`, `{"name":"t","requestState":1}`,
		`{"name":"t","requestState":"tg1.k1.AAAA"}`, `{"name":"t","requestState":"up.tg1.k1.AAAA"}`,
		`{"name":"t","requestState":"u\u0070.up.tg1."}`, `{"name":"t","requestState":"up.x"}`,
		`{"requestState":"\ud800","arguments":{"requestState":"x","inputResponses":1}}`, `{"arguments":1}`, `{}`,
	} {
		f.Add(params)
	}
	f.Fuzz(func(t *testing.T, params string) {
		msg, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`))
		if err != nil || !jsonrpc.IsObject(msg.Params) {
			return
		}
		state, given := jsonrpc.GetString(msg.Params, "requestState")
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			if q, _ := readEnvelope(http.Header{}, msg); q.checkRetry() != nil {
				continue
			}
			bare := jsonrpc.Without(jsonrpc.Without(msg.Params, "_meta"), "task") // of which other tests are
			got := translate.ModernParams(mcp.MethodToolsCall, era, bare)
			if !json.Valid(got) {
				t.Fatalf("%s becomes %s", params, got)
			}
			sent, sends := jsonrpc.GetString(got, "requestState")
			responses, answers := jsonrpc.Get(got, "inputResponses")
			switch {
			case era == mcp.Legacy && (sends || answers):
				t.Errorf("a legacy server gets %s", got)
			case era == mcp.Legacy:
			case sends != given, answers && !isResponses(responses):
				t.Errorf("%s becomes %s", params, got)
			case sent != state && "up."+sent != state, sent != state && !translate.OfGateway(sent):
				t.Errorf("the state %q becomes %q", state, sent)
			case sent == state && !bytes.Equal(got, bare):
				t.Errorf("%s becomes %s", params, got)
			}
		}
		// What a server gives out comes back to it, and is never taken for ours.
		asked := jsonrpc.With(json.RawMessage(`{"resultType":"input_required"}`), jsonrpc.AppendString(nil, state), "requestState")
		spliced, err := translate.ModernResult(mcp.MethodToolsCall, mcp.Modern, asked, json.RawMessage(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		out, _ := jsonrpc.GetString(spliced.Text(), "requestState")
		retry := jsonrpc.With(json.RawMessage(`{}`), jsonrpc.AppendString(nil, out), "requestState")
		back, _ := jsonrpc.GetString(translate.ModernParams(mcp.MethodToolsCall, mcp.Modern, retry), "requestState")
		if sealed.Ours(out) || back != state {
			t.Errorf("the state %q goes out as %q and comes back as %q", state, out, back)
		}
	})
}
