package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// TestRecognise is the ladder of protocol.md 2.10.
func TestRecognise(t *testing.T) {
	const (
		envelope = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
		modern   = "2026-07-28"
		legacy   = "2025-11-25"
	)
	for _, c := range []struct {
		step, header, body string
		era                mcp.Era
		code               int64
	}{
		{"2", "", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, 0, -32600},
		{"2", "", `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"x","params":{` + envelope + `}}]`, 0, -32600},
		{"2", modern, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, 0, -32600},
		{"2", "", `[]`, 0, -32600},
		{"3", "", `{"jsonrpc":"2.0","id":1,"result":{}}`, mcp.Legacy, 0},
		{"id", "", `{"jsonrpc":"2.0","id":"` + strings.Repeat("i", 1<<10) + `","method":"ping"}`, 0, -32600},
		{"id", modern, `{"jsonrpc":"2.0","id":"` + strings.Repeat("i", 1<<10) + `","method":"x","params":{` + envelope + `}}`, 0, -32600},
		{"id", "", `{"jsonrpc":"2.0","id":"` + strings.Repeat("i", 1000) + `","method":"ping"}`, mcp.Legacy, 0},
		{"3", legacy, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}`, mcp.Legacy, 0},
		{"3", modern, `{"jsonrpc":"2.0","id":1,"result":{}}`, 0, -32600},
		{"4", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` + envelope + `}}`, mcp.Modern, 0},
		{"4", legacy, `{"jsonrpc":"2.0","id":1,"method":"x","params":{` + envelope + `}}`, mcp.Modern, 0},
		{"4", "", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":null}}}`, mcp.Modern, 0},
		{"4", "", `{"jsonrpc":"2.0","method":"notifications/x","params":{` + envelope + `}}`, mcp.Modern, 0},
		{"5", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, mcp.Legacy, 0},
		{"5", modern, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, 0, -32020},
		{"5", " 2026-07-28\t", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, 0, -32020},
		{"6", modern, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, 0, -32602},
		{"7", "", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"progressToken":1}}}`, mcp.Legacy, 0},
		{"7", "v999", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, mcp.Legacy, 0},
		{"notification", modern, `{"jsonrpc":"2.0","method":"notifications/cancelled"}`, mcp.Modern, 0},
		{"notification", legacy, `{"jsonrpc":"2.0","method":"notifications/cancelled"}`, mcp.Legacy, 0},
		{"name", "", naming("tools/call", "name", "n", 1<<10), mcp.Legacy, 0},
		{"name", "", naming("tools/call", "name", "n", 1<<10+1), 0, -32602},
		{"name", "", naming("tools/call", "name", `\u006e`, 1<<10), mcp.Legacy, 0},
		{"name", "", naming("tools/call", "name", `\u006e`, 1<<10+1), 0, -32602},
		{"name", "", naming("prompts/get", "name", "n", 4<<20), 0, -32602},
		{"name", modern, strings.Replace(naming("tools/call", "name", "n", 1<<10+1), `"params":{`, `"params":{`+envelope+`,`, 1), 0, -32602},
		{"name", "", naming("tasks/get", "taskId", "n", 1<<10+1), 0, -32602},
		{"name", "", naming("resources/read", "uri", "n", 8<<10), mcp.Legacy, 0},
		{"name", "", naming("resources/read", "uri", "n", 8<<10+1), 0, -32602},
		{"name", "", naming(strings.Repeat("m", 1<<10+1), "name", "n", 1), 0, -32602},
		{"unreadable", "", `{`, 0, -32700},
		{"unreadable", "", ``, 0, -32700},
		{"unreadable", "", `7`, 0, -32600},
	} {
		h := http.Header{}
		if c.header != "" {
			h.Set(mcp.HeaderProtocolVersion, c.header)
		}
		era, _, err := recognise(h, []byte(c.body))
		var f *wire.Failure
		errors.As(err, &f)
		switch {
		case c.code == 0 && (err != nil || era != c.era):
			t.Errorf("step %s: %s %s: %v, %v", c.step, c.header, c.body, era, err)
		case c.code != 0 && (f == nil || f.Code != c.code || f.Status != http.StatusBadRequest):
			t.Errorf("step %s: %s %s: %v, %v", c.step, c.header, c.body, era, err)
		}
	}
	// A header that comes twice cannot hide a modern version behind a legacy one.
	h := http.Header{mcp.HeaderProtocolVersion: {legacy, modern}}
	if _, _, err := recognise(h, []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)); err == nil {
		t.Error("the second version was not seen")
	}
}

// naming is a request whose params have a name of as many characters, each spelt like this.
func naming(method, param, spelt string, n int) string {
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{"` + param + `":"` + strings.Repeat(spelt, n) + `"}}`
}

// TestMembersInOtherCase: a server that ignores the case of names, as those in Go do, takes the last
// member of a name. A request that it would take for another one is refused, in both eras.
func TestMembersInOtherCase(t *testing.T) {
	const envelope = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
	for _, params := range []string{
		`"name":"run","Name":"walk"`, `"NAME":"walk","name":"run"`, `"name":"run","n\u0041me":"walk"`, `"Name":"walk"`,
		`"arguments":{},"Arguments":{"a":1}`, `"argument\u017f":{}`, `"taskid":"x"`, `"TASK":{}`, `"x":1,"X":2`, `"\u212a":1,"k":2`,
		`"_META":{"progressToken":1}`, `"_meta":{"progressToken":1,"ProgressToken":2}`, `"_meta":{"PROGRESSTOKEN":2}`,
		`"_meta":{"IO.modelcontextprotocol/protocolVersion":"2026-07-28"}`,
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/ProtocolVersion":"2025-11-25"}`,
		strings.Join(manyMembers(40), ",") + `,"M7":0`,
	} {
		bodies := []string{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + params + `}}`, `{"jsonrpc":"2.0","method":"notifications/x","params":{` + params + `}}`}
		if !strings.Contains(params, `"_meta"`) {
			bodies = append(bodies, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{`+params+`,`+envelope+`}}`)
		}
		for _, body := range bodies {
			_, msg, err := recognise(http.Header{}, []byte(body))
			var f *wire.Failure
			if !errors.As(err, &f) || f.Code != mcp.CodeInvalidParams || f.Status != http.StatusBadRequest || f.ID != msg.ID {
				t.Errorf("%s: %v", body, err)
			}
		}
	}
	for _, params := range []string{
		`"name":"run","arguments":{"a":1,"A":2,"Name":"x"}`, `"x":{"a":1,"A":2}`, `"_meta":{"a/X":1,"b/x":2,"progressToken":1}`, strings.Join(manyMembers(40), ","), `"Other":1`,
	} {
		if _, _, err := recognise(http.Header{}, []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{`+params+`}}`)); err != nil {
			t.Errorf("%s: %v", params, err)
		}
	}
}

func manyMembers(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"m%d":%d`, i, i))
	}
	return all
}

// TestErasOffered: an upstream that is offered in one era knows no method of the other.
func TestErasOffered(t *testing.T) {
	for _, c := range []struct {
		eras           []string
		legacy, modern bool
	}{{nil, true, true}, {[]string{"legacy"}, true, false}, {[]string{"modern"}, false, true}, {[]string{"modern", "legacy"}, true, true}} {
		u := &route{endpoint: &endpoint.Endpoint{Config: &config.Upstream{Eras: c.eras}}}
		for era, offered := range map[mcp.Era]bool{mcp.Legacy: c.legacy, mcp.Modern: c.modern} {
			err := u.offers(era, jsonrpc.Message{})
			var f *wire.Failure
			if errors.As(err, &f); offered != (err == nil) || !offered && (f == nil || f.Code != mcp.CodeMethodNotFound) {
				t.Errorf("%v, %v client: %v", c.eras, era, err)
			}
		}
	}
}

// TestModernOnly: where the modern era alone is offered, there are no GET and no DELETE (protocol.md 2.5).
func TestModernOnly(t *testing.T) {
	c := config.FromFlags("http://up.example/")
	c.Upstreams[0].Eras = []string{"modern"}
	h, _ := startLogged(t, c)
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodDelete} {
		w := serve(h, httptest.NewRequest(method, "/mcp", nil))
		if allow := w.Header().Get("Allow"); w.Code != http.StatusMethodNotAllowed || allow != http.MethodPost {
			t.Errorf("%s: %d, Allow: %s", method, w.Code, allow)
		}
	}
}
