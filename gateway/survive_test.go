package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"taskgate/gateway/translate"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// TestResultsSurvive passes random results through the gateway: apart from the
// members that it adds, every byte has to come out as it went in (design.md 0.8).
func TestResultsSurvive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := jsonObject(rt, 3)
		s := newStage(t)
		s.up.Era, s.up.Capabilities = mcp.Legacy, json.RawMessage(`{"tools":{},"prompts":{}}`)
		s.up.Replies = map[string]fakeReply{"tools/call": {Result: in}, "prompts/get": {Result: in}}
		h := s.start()
		for _, method := range []string{"tools/call", "prompts/get"} {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, wiretest.ModernPost(method, `{"name":"x","_meta":{$META}}`))
			out, ok := jsonrpc.Get(rec.Body.Bytes(), "result")
			if !ok {
				rt.Fatalf("no result: %s", rec.Body)
			}
			for _, added := range []string{"resultType", "_meta"} {
				if _, ok := jsonrpc.Get(out, added); !ok {
					rt.Fatalf("%s was not added: %s", added, out)
				}
				out = jsonrpc.Without(out, added)
			}
			if !bytes.Equal(out, in) {
				rt.Fatalf("in  %s\nout %s", in, out)
			}
		}
	})
}

// TestArgumentsSurvive does the same for what travels to the upstream.
func TestArgumentsSurvive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		args := jsonObject(rt, 3)
		params := fmt.Sprintf(`{"name":"x", "arguments":%s ,"z":1.0,"_meta":{%s}}`, args,
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28"`)
		out := translate.ModernParams("tools/call", mcp.Legacy, json.RawMessage(params))
		want := fmt.Sprintf(`{"name":"x", "arguments":%s ,"z":1.0}`, args)
		if string(out) != want {
			rt.Fatalf("got  %s\nwant %s", out, want)
		}
	})
}

// jsonObject draws the text of an object with odd spelling: blanks, escapes,
// numbers that a float would change.
func jsonObject(t *rapid.T, depth int) json.RawMessage {
	var b strings.Builder
	b.WriteString("{" + blank(t))
	for i := range rapid.IntRange(0, 4).Draw(t, "members") {
		if i > 0 {
			b.WriteString("," + blank(t))
		}
		fmt.Fprintf(&b, `"k%d%s"%s:%s%s%s`, i, rapid.SampledFrom([]string{"", `\u003c`, "ä", `\n`}).Draw(t, "name"),
			blank(t), blank(t), jsonValue(t, depth), blank(t))
	}
	b.WriteString("}")
	return json.RawMessage(b.String())
}

func jsonValue(t *rapid.T, depth int) string {
	kinds := 2
	if depth > 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]string{"1.0", "9007199254740993", "-0", "1e400", "true", "null", "0.1E+2"}).Draw(t, "scalar")
	case 1:
		return rapid.SampledFrom([]string{`""`, `"\u003c\u2028"`, `"</script>"`, `"\\\""`, `"ä😀"`, `"{\"a\":1}"`}).Draw(t, "string")
	case 2:
		return string(jsonObject(t, depth-1))
	}
	elems := make([]string, rapid.IntRange(0, 3).Draw(t, "elements"))
	for i := range elems {
		elems[i] = jsonValue(t, depth-1)
	}
	return "[" + blank(t) + strings.Join(elems, blank(t)+","+blank(t)) + "]"
}

func blank(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "", " ", "\t", "  "}).Draw(t, "blank")
}
