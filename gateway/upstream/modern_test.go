package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/remember"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

const marked = `{"type":"object","properties":{"key":{"type":"string","x-mcp-header":"Key"},"n":{"type":"integer","x-mcp-header":"Count"},"deep":{"type":"object","properties":{"on":{"type":"boolean","x-mcp-header":"On"}}}}}`

// A modern request says in headers and in _meta what its body is about, and
// leaves everything else in params as it was.
func TestModernRequest(t *testing.T) {
	bubble(t, fake.Modern, Config{GatewayInfo: Info{"gw", "9"}}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		s.Tool("zoë", fake.Text("ok"))
		s.Schema("t", marked)
		const params = `{ "name":"t","arguments":{"key":" kë","n":42.0,"deep":{"on":true},"big":9007199254740993},"inputResponses":{"a":{"x":1.0}},"requestState":"S", "_meta":{"progressToken":"theirs","com.example/x":1}}`
		r := shim.Request{Method: "tools/call", Params: json.RawMessage(params), LogLevel: "info", Session: shim.Session{
			Key: "a", Capabilities: json.RawMessage(`{"elicitation":{},"extensions":{"x/y":{}}}`),
		}}
		must(t, errorOf(h.Call(t.Context(), r, nil)))
		got := s.Seen("tools/call")[0]
		for name, want := range map[string]string{
			"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "t",
			"Mcp-Param-Key": "=?base64?IGvDqw==?=", "Mcp-Param-Count": "42", "Mcp-Param-On": "true",
			"Mcp-Session-Id": "", "Accept": "application/json, text/event-stream",
		} {
			if v := got.Header.Get(name); v != want {
				t.Errorf("%s: %q, want %q", name, v, want)
			}
		}
		meta, _ := jsonrpc.Get(got.Params, "_meta")
		want := fmt.Sprintf(`{"com.example/x":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"extensions":{"x/y":{},"io.modelcontextprotocol/tasks":{}}},"io.modelcontextprotocol/clientInfo":{"name":"gw","version":"9"},"io.modelcontextprotocol/logLevel":"info","progressToken":%s}`, got.ID)
		if string(meta) != want {
			t.Errorf("_meta\n%s, want\n%s", meta, want)
		}
		before, _, _ := strings.Cut(params, `"_meta"`)
		if !strings.HasPrefix(string(got.Params), before) {
			t.Errorf("params %s", got.Params)
		}
		mustCall(t, h, shimtest.Tool("zoë", "k"))
		if v := s.Seen("tools/call")[1].Header.Get("Mcp-Name"); !strings.HasPrefix(v, "=?base64?") {
			t.Errorf("Mcp-Name %q", v)
		}
	})
}

// A tool whose schema has changed is listed again and called again, once.
func TestHeaderMismatch(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) {
			if x.R.Header.Get("Mcp-Param-Key") != "k" {
				fake.RPCError(400, -32020, "missing header", "")(x)
				return
			}
			fake.Text("ok")(x)
		})
		if r, err := h.Call(t.Context(), in("a", ``), nil); err != nil || r.Error == nil || r.Error.Code != -32603 {
			t.Errorf("without the schema: %+v, %v", r.Error, err)
		}
		s.Schema("t", marked)
		mustCall(t, h, in("a", ``))
		if n := len(s.Seen("tools/call")); s.Runs("k") != 1 || n != 3 {
			t.Errorf("sent %d times, ran %d times; want 3 and once", n, s.Runs("k"))
		}
		s.Schema("t", strings.Replace(marked, `"Key"`, `"Other"`, 1)) // now the list is out of date
		s.Tool("t", func(x *fake.Exchange) {
			if x.R.Header.Get("Mcp-Param-Other") != "k" {
				fake.RPCError(400, -32020, "missing header", "")(x)
				return
			}
			fake.Text("ok")(x)
		})
		mustCall(t, h, in("a", ``))
		if n := len(s.Seen("tools/call")); s.Runs("k") != 2 || n != 5 {
			t.Errorf("sent %d times, ran %d times; want 5 and twice", n, s.Runs("k"))
		}
	})
}

func TestToolCache(t *testing.T) {
	for _, m := range []fake.Mode{fake.Stateful, fake.Modern} {
		bubble(t, m, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			s.Schema("t", marked)
			ses := shim.Session{Key: "a"}
			lists := func(want int) {
				t.Helper()
				if n := len(s.Seen("tools/list")); n != want {
					t.Errorf("%d lists, want %d", n, want)
				}
			}
			for range 3 {
				tool, ok, err := h.Tool(t.Context(), ses, "t")
				if err != nil || !ok || len(tool.Params) != 3 || tool.Invalid != nil {
					t.Fatalf("%+v, %v, %v", tool, ok, err)
				}
			}
			lists(1)
			for range 3 { // an unknown name is not asked for over and over
				if _, ok, err := h.Tool(t.Context(), ses, "new"); ok || err != nil {
					t.Errorf("%v, %v", ok, err)
				}
			}
			lists(1)
			s.Tool("new", fake.Text("ok"))
			s.Schema("new", `{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`)
			pauseFor(t, toolsMinAge)
			if tool, ok, err := h.Tool(t.Context(), ses, "new"); !ok || err != nil || tool.Invalid == nil {
				t.Errorf("%+v, %v, %v", tool, ok, err)
			}
			lists(2)
			h.Forget(ses)
			_, _, _ = h.Tool(t.Context(), ses, "t")
			lists(3)
			pauseFor(t, remember.Least) // the server says ttlMs 0
			_, _, _ = h.Tool(t.Context(), ses, "t")
			lists(4)
		})
	}
}

// A list comes in pages; an empty cursor is one too, and a list without end is over where nothing new comes.
func TestToolPages(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On("tools/list", func(x *fake.Exchange) {
			cursor, ok := jsonrpc.GetString(x.Params, "cursor")
			switch {
			case !ok:
				fake.Result(`{"tools":[{"name":"one"}],"nextCursor":""}`)(x)
			case cursor == "":
				fake.Result(`{"tools":[{"name":"two"}],"nextCursor":"z"}`)(x)
			default:
				fake.Result(`{"tools":[{"name":"three"}]}`)(x)
			}
		})
		for _, name := range []string{"one", "two", "three"} {
			if _, ok, err := h.Tool(t.Context(), shim.Session{}, name); !ok || err != nil {
				t.Errorf("%s: %v, %v", name, ok, err)
			}
		}
		s.On("tools/list", fake.Status(503, "", ""))
		h.Forget(shim.Session{})
		if _, ok, err := h.Tool(t.Context(), shim.Session{}, "one"); !ok || err != nil {
			t.Errorf("the list that was there before: %v, %v", ok, err)
		}
		s.On("tools/list", fake.Result(`{"tools":[],"nextCursor":"x"}`))
		pauseFor(t, toolsMinAge)
		if _, ok, err := h.Tool(t.Context(), shim.Session{}, "four"); ok || err != nil {
			t.Errorf("an endless list: %v, %v", ok, err)
		}
	})
}

// Closing a modern stream is what cancels it, whatever the cause; nothing is
// posted.
func TestModernCancel(t *testing.T) {
	for _, cause := range []error{context.Canceled, shim.ErrDetached} {
		bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			gone := make(chan struct{}, 1)
			s.Tool("t", fake.Hanging(gone))
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(cause) })
			if _, err := h.Call(ctx, in("a", ``), nil); err != cause {
				t.Errorf("error %v, want %v", err, cause)
			}
			<-gone
			asked(t, s, "notifications/cancelled", 0)
		})
	}
}
