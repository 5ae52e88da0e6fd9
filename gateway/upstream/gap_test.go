package upstream

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// list reads all pages of a list, as a client does.
func list(t *testing.T, h *ServerClient, s shim.Session, method string) {
	t.Helper()
	var params json.RawMessage
	for {
		r, err := h.Call(t.Context(), shim.Request{Method: method, Params: params, Session: s}, nil)
		must(t, err)
		next, more := jsonrpc.Get(r.Result, "nextCursor")
		if !more {
			return
		}
		params = json.RawMessage(`{"cursor":` + string(next) + `}`)
	}
}

// entries has the server list these in two pages.
func entries(member string, names ...string) fake.Behaviour {
	return func(x *fake.Exchange) {
		page, next := names[:1], `,"nextCursor":"2"`
		if strings.Contains(string(x.Params), `"cursor":"2"`) {
			page, next = names[1:], ""
		}
		var all []string
		for _, name := range page {
			all = append(all, fmt.Sprintf(`{"name":%q}`, name))
		}
		fake.Result(fmt.Sprintf(`{"resultType":"complete","ttlMs":0,"cacheScope":"private",%q:[%s]%s}`, member, strings.Join(all, ","), next))(x)
	}
}

// A break of the server's stream invents no change: the lists that clients have read are compared, whatever the order of
// their entries, and only one that differs is told. Behind a proxy that cuts streams every two seconds, clients were told
// of all lists as often.
func TestBreakInventsNoChange(t *testing.T) {
	for _, c := range []struct {
		name, want string
		now        fake.Behaviour
	}{
		{"nothing", "", entries("prompts", "b", "a")},
		{"a list", "prompts/list_changed", entries("prompts", "a", "c")},
		{"a list that cannot be read", "prompts/list_changed prompts/list_changed", fake.Status(500, "", "")},
		{"the method is gone", "", fake.RPCError(200, -32601, "unknown", "")},
	} {
		bubbleOf(t, c.name, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			s.On("prompts/list", entries("prompts", "a", "b"))
			e := hear(t, h, "a", shim.Filter{ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true})
			list(t, h, shim.Session{Key: "a"}, "tools/list")
			list(t, h, shim.Session{Key: "a"}, "prompts/list")
			s.On("prompts/list", c.now)
			for range 2 {
				s.CutListeners()
				pauseFor(t, 5*time.Second)
			}
			synctest.Wait()
			if asked(t, s, "GET", 3); e.methods() != c.want {
				t.Errorf("heard %q, want %q", e.methods(), c.want)
			}
			e.end(t)
		})
	}
}

// So it is at a modern server.
func TestBreakInventsNoChangeModern(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		say := make(chan string)
		s.On("subscriptions/listen", subscriptions(say, `{"toolsListChanged":true}`))
		s.Tool("t", fake.Text("ok"))
		list(t, h, shim.Session{}, "tools/list")
		e := hear(t, h, "", shim.Filter{ToolsListChanged: true})
		cut := func(want string) {
			t.Helper()
			say <- "cut"
			pauseFor(t, 5*time.Second)
			synctest.Wait()
			if e.methods() != want {
				t.Errorf("heard %q, want %q", e.methods(), want)
			}
		}
		cut("")
		cut("")
		s.Tool("new", fake.Text("ok"))
		cut("tools/list_changed")
		cut("tools/list_changed")
		e.end(t)
	})
}

// A server that never declared that a list may change is not said to have changed it. A client has read the list at
// another replica than the one that holds the stream.
func TestBreakBetweenReplicas(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		s.Capabilities(`{"tools":{"listChanged":true},"prompts":{},"resources":{}}`)
		b := shareSessions(t, a)
		s.Tool("t", fake.Text("ok"))
		list(t, b, together().Session, "tools/list")
		synctest.Wait()
		e := hearIn(t, a, together().Session, shim.Filter{})
		for _, want := range []string{"", "tools/list_changed"} {
			s.CutListeners()
			pauseFor(t, 5*time.Second)
			synctest.Wait()
			if e.methods() != want {
				t.Errorf("heard %q, want %q", e.methods(), want)
			}
			s.Tool("new", fake.Text("ok"))
		}
		e.end(t)
	})
}

// A list that never ends is compared all the same: it ends with a page that brings nothing new.
func TestBreakWithEndlessList(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		page := 0
		s.On("tools/list", func(x *fake.Exchange) {
			page++
			fake.Result(fmt.Sprintf(`{"tools":[{"name":"a"}],"nextCursor":"%d"}`, page))(x)
		})
		e := hear(t, h, "a", shim.Filter{ToolsListChanged: true})
		_, err := h.Call(t.Context(), shim.Request{Method: "tools/list", Session: shim.Session{Key: "a"}}, nil)
		must(t, err)
		for range 3 {
			s.CutListeners()
			pauseFor(t, 5*time.Second)
		}
		synctest.Wait()
		if e.methods() != "tools/list_changed" || page != 1+3*2 {
			t.Errorf("heard %q, %d pages", e.methods(), page)
		}
		e.end(t)
	})
}
