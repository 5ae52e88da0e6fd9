package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest/fake"
)

// rightsServer has the tools admin_reset and time. It answers a call of an unknown tool with a text, or an error, that
// names the tool.
func rightsServer(t *testing.T, mode fake.Mode) *fake.Server {
	t.Helper()
	s := fake.New(t, mode)
	s.Tool("admin_reset", fake.Text("reset"))
	s.Tool("time", fake.Text("noon"))
	s.On("tools/call", func(x *fake.Exchange) {
		var p struct{ Name string }
		must(t, json.Unmarshal(x.Params, &p))
		text := map[string]string{"admin_reset": "reset", "time": "noon"}[p.Name]
		switch {
		case text != "":
			fake.Text(text)(x)
		case mode == fake.Modern:
			fake.RPCError(200, -32602, "Unknown tool: "+p.Name, "")(x)
		default:
			fake.Result(`{"content":[{"type":"text","text":"Unknown tool: ` + p.Name + `"}],"isError":true}`)(x)
		}
	})
	return s
}

// toolsIn are the names of the tools in a list.
func toolsIn(list string) (names []string) {
	for _, found := range regexp.MustCompile(`"name":"([^"]*)","inputSchema"`).FindAllStringSubmatch(list, -1) {
		names = append(names, found[1])
	}
	slices.Sort(names)
	return names
}

// calledAt are the names by which a server was called.
func calledAt(s *fake.Server) (names []string) {
	for _, seen := range s.Seen("tools/call") {
		var p struct{ Name string }
		_ = json.Unmarshal(seen.Params, &p)
		names = append(names, p.Name)
	}
	return names
}

// rightsOf is a gateway in front of a server, where admin_reset is for alice alone.
func rightsGateway(t *testing.T, s *fake.Server, more ...string) *changing {
	return runChanging(t, time.Hour, rightsFile(s, "[alice]", more...))
}

func rightsFile(s *fake.Server, principals string, more ...string) string {
	return "auth: {keys: ['alice:" + config.HashKey(wiretest.AliceKey) + "', 'bob:" + config.HashKey(wiretest.BobKey) + "']}\n" +
		upstreamsOf("{name: a, url: '"+s.URL+"', tools: [{match: 'admin_*', principals: "+principals+strings.Join(more, "")+"}]}")
}

// openSession opens a session of 2025-11-25.
func (c *changing) openSession(key string) string {
	c.t.Helper()
	_, said, h := c.request("/a/mcp", key, wiretest.InitializeBody)
	if h.Get(mcp.HeaderSession) == "" {
		c.t.Fatalf("initialize: %s", said)
	}
	return h.Get(mcp.HeaderSession)
}

// TestHiddenTools: who is not of the principals of a tool does not find it in lists, and a call of it is answered in the
// words for a tool that does not exist: in both eras, at servers of both, as a call and as a task.
func TestHiddenTools(t *testing.T) {
	for name, mode := range map[string]fake.Mode{"legacy": fake.Stateful, "modern": fake.Modern} {
		t.Run(name, func(t *testing.T) {
			s := rightsServer(t, mode)
			c := rightsGateway(t, s)
			alice, bob := c.openSession(wiretest.AliceKey), c.openSession(wiretest.BobKey)
			ask := map[string]func(key, session, method, params string) string{
				"modern": func(key, _, method, params string) string {
					_, text := c.modernAt("/a/mcp", key, method, params)
					return text
				},
				"legacy": func(key, session, method, params string) string {
					_, text, _ := c.request("/a/mcp", key, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+strings.TrimSuffix(params, ",")+`}}`, mcp.HeaderSession, session)
					return text
				},
			}
			for era, ask := range ask {
				if list := ask(wiretest.AliceKey, alice, "tools/list", ""); !slices.Equal(toolsIn(list), []string{"admin_reset", "time"}) {
					t.Errorf("%s: alice is shown %s", era, list)
				}
				list := ask(wiretest.BobKey, bob, "tools/list", "")
				if !slices.Equal(toolsIn(list), []string{"time"}) || strings.Contains(list, `"public"`) {
					t.Errorf("%s: bob is shown %s", era, list)
				}
				if text := ask(wiretest.AliceKey, alice, "tools/call", `"name":"admin_reset","arguments":{},`); !strings.Contains(text, "reset") {
					t.Errorf("%s: alice is answered %s", era, text)
				}
				hidden := ask(wiretest.BobKey, bob, "tools/call", `"name":"admin_reset","arguments":{},`)
				unknown := ask(wiretest.BobKey, bob, "tools/call", `"name":"no_such_one","arguments":{},`)
				if want := strings.ReplaceAll(unknown, "no_such_one", "admin_reset"); hidden != want || !strings.Contains(hidden, "Unknown tool: admin_reset") {
					t.Errorf("%s: bob is answered %s\nand for an unknown tool %s", era, hidden, want)
				}
			}
			task := func(tool string) (result string) {
				made := ask["legacy"](wiretest.BobKey, bob, "tools/call", `"name":"`+tool+`","arguments":{},"task":{}`)
				_, id, ok := strings.Cut(made, `"taskId":"`)
				if !ok { // the tools of a server of 2026 are known before there is a task
					return strings.ReplaceAll(made, tool, "TOOL")
				}
				id, _, _ = strings.Cut(id, `"`)
				result = ask["legacy"](wiretest.BobKey, bob, "tasks/result", `"taskId":"`+id+`"`)
				return strings.ReplaceAll(strings.ReplaceAll(result, id, "ID"), tool, "TOOL")
			}
			if hidden, unknown := task("admin_reset"), task("no_such_one"); hidden != unknown || !strings.Contains(strings.ToLower(hidden), "unknown tool: tool") {
				t.Errorf("as a task bob is answered %s\nand for an unknown tool %s", hidden, unknown)
			}
			count := 0
			for _, name := range calledAt(s) {
				if name == "admin_reset" {
					count++
				}
			}
			if count != 2 {
				t.Errorf("the tool was called %d times: %q", count, calledAt(s))
			}
		})
	}
}

// TestTasksOfHiddenTools: a task is read by its owner also after its tool was hidden from the owner, in both dialects.
func TestTasksOfHiddenTools(t *testing.T) {
	s := rightsServer(t, fake.Stateful)
	c := rightsGateway(t, s, ", tasks: always")
	session := c.openSession(wiretest.AliceKey)
	_, made := c.modernAt("/a/mcp", wiretest.AliceKey, "tools/call", `"name":"admin_reset","arguments":{},`)
	_, modern, _ := strings.Cut(made, `"taskId":"`)
	modern, _, _ = strings.Cut(modern, `"`)
	_, made, _ = c.request("/a/mcp", wiretest.AliceKey, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"admin_reset","task":{}}}`, mcp.HeaderSession, session)
	_, legacy, _ := strings.Cut(made, `"taskId":"`)
	legacy, _, _ = strings.Cut(legacy, `"`)

	c.takes(rightsFile(s, "[bob]", ", tasks: always"))
	c.until("the task of the extension is read", func() bool {
		_, text := c.ask("/a/mcp", wiretest.AliceKey, "tasks/get", modern)
		return strings.Contains(text, "completed") && strings.Contains(text, "reset")
	})
	if _, text, _ := c.request("/a/mcp", wiretest.AliceKey, `{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"`+legacy+`"}}`, mcp.HeaderSession, session); !strings.Contains(text, "reset") {
		t.Errorf("the task of the session: %s", text)
	}
	if _, text := c.ask("/a/mcp", wiretest.BobKey, "tasks/get", modern); !strings.Contains(text, "-32602") {
		t.Errorf("bob reads a task of alice: %s", text)
	}
}

// hearing is a stream of a client, as its lines.
func (c *changing) hearing(key, method, body string, header http.Header) <-chan string {
	c.t.Helper()
	ctx, leave := context.WithCancel(context.Background())
	c.t.Cleanup(leave)
	r, err := http.NewRequestWithContext(ctx, method, "http://"+c.s.listener.Addr().String()+"/a/mcp", strings.NewReader(body))
	must(c.t, err)
	r.Header = header
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Accept", mcp.TypeAccept)
	r.Header.Set("Content-Type", mcp.TypeJSON)
	resp, err := http.DefaultClient.Do(r)
	must(c.t, err)
	c.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %s", method, resp.Status)
	}
	said := make(chan string, 100)
	lines := bufio.NewScanner(resp.Body)
	go func() {
		defer close(said)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "data: {") { // others only have an id
				said <- lines.Text()
			}
		}
	}()
	return said
}

// listen opens a stream of 2026 for changes of the list of tools, and awaits its acknowledgement.
func (c *changing) listen(key string) <-chan string {
	c.t.Helper()
	said := c.hearing(key, "POST", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{`+
		wiretest.Macros.Replace("$META")+`}}}`, http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"subscriptions/listen"}})
	if first := wiretest.Await(c.t, said, "an acknowledgement"); !strings.Contains(first, `"toolsListChanged":true`) {
		c.t.Fatalf("the first message is %s", first)
	}
	return said
}

// TestReloadTellsOfRights: a reload that shows or hides a tool tells those whose list it changes, in both eras, and
// nobody else.
func TestReloadTellsOfRights(t *testing.T) {
	s := rightsServer(t, fake.Both)
	c := rightsGateway(t, s)
	get := func(key string) <-chan string {
		session := c.openSession(key)
		return c.hearing(key, "GET", "", http.Header{mcp.HeaderSession: {session}})
	}
	alice := map[string]<-chan string{"legacy": get(wiretest.AliceKey), "modern": c.listen(wiretest.AliceKey)}
	bob := map[string]<-chan string{"legacy": get(wiretest.BobKey), "modern": c.listen(wiretest.BobKey)}
	changed := func(who string, streams map[string]<-chan string) {
		t.Helper()
		for era, said := range streams {
			if message := wiretest.Await(t, said, era+" stream of "+who); !strings.Contains(message, mcp.NotifyToolsListChanged) {
				t.Errorf("%s, %s: %s", who, era, message)
			}
		}
	}
	c.takes(rightsFile(s, "[alice, bob]"))
	changed("bob", bob)
	c.takes(rightsFile(s, "[alice, bob]", "}, {match: other, tasks: never")) // says the same
	c.takes(rightsFile(s, "[bob]"))
	changed("alice", alice)
	c.takes(rightsFile(s, "[alice, bob]"))
	changed("alice", alice)
	for who, streams := range map[string]map[string]<-chan string{"alice": alice, "bob": bob} {
		for era, said := range streams {
			select {
			case message := <-said:
				t.Errorf("%s, %s, is told of nothing new: %s", who, era, message)
			default:
			}
		}
	}
}

// TestNewTokenWithOtherRights: a client of 2025 that goes on with a token of other rights is told that its list of tools
// has changed, once, and a token with the same rights changes nothing.
func TestNewTokenWithOtherRights(t *testing.T) {
	s := rightsServer(t, fake.Stateful)
	issuer := wiretest.NewIssuer(t, "")
	c := runChanging(t, time.Hour, "public_url: https://gateway.example\nauth: {jwt: {issuer: '"+issuer.URL+"', audiences: [here]}}\n"+
		upstreamsOf("{name: a, url: '"+s.URL+"', tools: [{match: 'admin_*', principals: [groups=admins]}]}"))
	user := issuer.Token("alice", map[string]any{"aud": "here"})
	admin := issuer.Token("alice", map[string]any{"aud": "here", "groups": "admins"})
	session := c.openSession(user)
	said := c.hearing(user, "GET", "", http.Header{mcp.HeaderSession: {session}})
	ask := func(token, method string) string {
		_, text, _ := c.request("/a/mcp", token, `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`, mcp.HeaderSession, session)
		return text
	}
	if list := ask(user, mcp.MethodToolsList); strings.Contains(list, "admin_reset") {
		t.Errorf("a user is shown %s", list)
	}
	ask(user, mcp.MethodPing)
	ask(admin, mcp.MethodPing)
	ask(admin, mcp.MethodPing)
	if message := wiretest.Await(t, said, "a list change"); !strings.Contains(message, mcp.NotifyToolsListChanged) {
		t.Errorf("the stream says %s", message)
	}
	if list := ask(admin, mcp.MethodToolsList); !strings.Contains(list, "admin_reset") {
		t.Errorf("an admin is shown %s", list)
	}
	if list := ask(user, mcp.MethodToolsList); strings.Contains(list, "admin_reset") {
		t.Errorf("a user is shown %s", list)
	}
	ask(admin, mcp.MethodPing)
	wiretest.Await(t, said, "the second list change")
	select {
	case message := <-said:
		t.Errorf("the stream also says %s", message)
	default:
	}
}

// TestRightsOfTokens: a claim of a token has a value alone or in a list, and a tool whose scopes a token lacks is listed
// unless it is hidden.
func TestRightsOfTokens(t *testing.T) {
	s := rightsServer(t, fake.Modern)
	issuer := wiretest.NewIssuer(t, "")
	file := func(rule string) string {
		return "public_url: https://gateway.example\nauth: {jwt: {issuer: '" + issuer.URL + "', audiences: [here]}}\n" + upstreamsOf("{name: a, url: '"+s.URL+"', tools: ["+rule+"]}")
	}
	c := runChanging(t, time.Hour, file(`{match: x, principals: [a=b]}`))
	both, open := []string{"admin_reset", "time"}, []string{"time"}
	for i, one := range []struct {
		name, rule string
		claims     map[string]any
		shown      []string
	}{
		{"a list has the value", `principals: ["groups=admins"]`, map[string]any{"groups": []string{"users", "admins"}}, both},
		{"a text is the value", `principals: ["groups=admins"]`, map[string]any{"groups": "admins"}, both},
		{"a text with the value in it", `principals: ["groups=admins"]`, map[string]any{"groups": "users admins"}, open},
		{"another value", `principals: ["groups=admins"]`, map[string]any{"groups": []string{"users"}}, open},
		{"no such claim", `principals: ["groups=admins"]`, nil, open},
		{"a number", `principals: ["level=3"]`, map[string]any{"level": 3}, both},
		{"a boolean", `principals: ["staff=true"]`, map[string]any{"staff": true}, both},
		{"an object", `principals: ["groups=admins"]`, map[string]any{"groups": map[string]any{"groups": "admins"}}, open},
		{"the subject", `principals: ["sub=alice"]`, nil, both},
		{"one of two", `principals: ["sub=bob", "sub=alice"]`, nil, both},
		{"scopes that it has", `scopes: admin, missing_rights: hide`, map[string]any{"scope": "a admin"}, both},
		{"scopes that it lacks", `scopes: admin, missing_rights: hide`, map[string]any{"scope": "a"}, open},
		{"scopes that it lacks, and is told", `scopes: admin`, nil, both},
		{"the scopes, but not the claim", `scopes: admin, principals: [sub=bob]`, map[string]any{"scope": "admin"}, open},
		{"the claim, but not the scopes", `scopes: admin, principals: [sub=alice]`, nil, both},
	} {
		c.takes(file(fmt.Sprintf("{match: 'admin_*', %s}, {match: 'other%d'}", one.rule, i)))
		claims := map[string]any{"aud": "here"}
		for name, value := range one.claims {
			claims[name] = value
		}
		token := issuer.Token("alice", claims)
		_, list := c.modernAt("/a/mcp", token, "tools/list", "")
		if !slices.Equal(toolsIn(list), one.shown) {
			t.Errorf("%s: the token is shown %s", one.name, list)
		}
		status, text := c.ask("/a/mcp", token, "tools/call", "admin_reset")
		switch hidden := slices.Equal(one.shown, open); {
		case hidden && !strings.Contains(text, "Unknown tool: admin_reset"):
			t.Errorf("%s: a hidden tool is answered %d %s", one.name, status, text)
		case !hidden && !strings.Contains(text, "reset") && status != 403:
			t.Errorf("%s: the tool is answered %d %s", one.name, status, text)
		}
	}
	if n := strings.Count(strings.Join(calledAt(s), " "), "admin_reset"); n != 7 {
		t.Errorf("the tool was called %d times: %q", n, calledAt(s))
	}
}
