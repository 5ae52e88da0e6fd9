package main

import (
	"strings"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim/shimtest/fake"
)

// TestPolicyByAnnotations: what the server says of a tool decides which policy it has, at servers and for clients of
// both eras. A server that cannot list its tools says nothing of them, and the careful policy holds.
func TestPolicyByAnnotations(t *testing.T) {
	const tools = `{"resultType":"complete","ttlMs":60000,"cacheScope":"public","tools":[` +
		`{"name":"reads","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},{"name":"writes","inputSchema":{"type":"object"}}]}`
	const inTask, forbidsTask = `"taskId"`, "cannot be called as a task"
	for name, c := range map[string]struct {
		mode  fake.Mode
		lists fake.Behaviour
		reads bool // as the policy has it
	}{
		"legacy":           {fake.Stateful, fake.Result(tools), true},
		"modern":           {fake.Modern, fake.Result(tools), true},
		"legacy, unlisted": {fake.Stateful, fake.RPCError(200, mcp.CodeInternal, "no list", ""), false},
		"modern, unlisted": {fake.Modern, fake.RPCError(200, mcp.CodeInternal, "no list", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := fake.New(t, c.mode)
			s.Tool("reads", fake.Text("done"))
			s.Tool("writes", fake.Text("done"))
			s.On(mcp.MethodToolsList, c.lists)
			g := runChanging(t, time.Hour, keyed("alice", wiretest.AliceKey)+upstreamsOf(
				"{name: a, url: '"+s.URL+"', defaults: {tasks: always}, tools: [{match: {read_only: true}, tasks: never}]}"))
			session := g.openSession(wiretest.AliceKey)
			modern := func(tool string) string {
				_, text := g.modernAt("/a/mcp", wiretest.AliceKey, mcp.MethodToolsCall, `"name":"`+tool+`","arguments":{},`)
				return text
			}
			legacy := func(method, params string) string {
				text, _ := g.askIn(session, "/a/mcp", method, params)
				return text
			}
			asTask := func(tool string) string {
				return legacy(mcp.MethodToolsCall, `{"name":"`+tool+`","arguments":{},"task":{}}`)
			}
			for _, call := range []struct {
				how   func(string) string
				reads string
			}{{modern, `"done"`}, {asTask, forbidsTask}} {
				want := inTask
				if c.reads {
					want = call.reads
				}
				if got := call.how("reads"); !strings.Contains(got, want) {
					t.Errorf("the reading tool answers %s, want %s", got, want)
				}
				if got := call.how("writes"); !strings.Contains(got, inTask) {
					t.Errorf("the writing tool answers %s, want %s", got, inTask)
				}
			}
			list := legacy(mcp.MethodToolsList, `{}`)
			if c.reads && (strings.Count(list, `"taskSupport"`) != 1 || strings.Index(list, `"taskSupport"`) < strings.Index(list, `"writes"`)) {
				t.Errorf("a legacy client is shown %s", list)
			}
		})
	}
}
