package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// A call can do without the list of tools: it goes to a server that cannot list them, and waits a
// moment for one that is slow, whose list the next call has.
func TestCallWithoutTheList(t *testing.T) {
	for name, c := range map[string]struct {
		lists fake.Behaviour
		most  time.Duration
	}{
		"an error": {fake.RPCError(200, -32603, "no", ""), 0},
		"slow": {func(x *fake.Exchange) {
			<-time.After(20 * time.Second)
			fake.Result(`{"resultType":"complete","ttlMs":60000,"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)(x)
		}, listPatience},
	} {
		bubbleOf(t, name, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			s.On(mcp.MethodToolsList, c.lists)
			began := time.Now()
			mustCall(t, h, in("a", ``))
			if d := time.Since(began); d > c.most {
				t.Errorf("answered after %s", d)
			}
			if name == "slow" {
				<-time.After(20 * time.Second)
				if _, ok, err := h.Tool(t.Context(), shim.Session{Key: "a"}, "t"); !ok || err != nil {
					t.Errorf("the list has the tool: %t, %v", ok, err)
				}
				asked(t, s, mcp.MethodToolsList, 1)
			}
		})
	}
}

// A call that may only be made if the server marks its tool is made by what the server says now, and not by what it said
// before. Where it lists nothing, it says nothing.
func TestIfRepeatable(t *testing.T) {
	list := func(annotations string) fake.Behaviour {
		return fake.Result(`{"resultType":"complete","ttlMs":3600000,"tools":[{"name":"t","inputSchema":{"type":"object"},"annotations":` + annotations + `}]}`)
	}
	for name, c := range map[string]struct {
		before, now fake.Behaviour
		made        bool
	}{
		"read-only":  {list(`{}`), list(`{"readOnlyHint":true}`), true},
		"idempotent": {list(`{}`), list(`{"idempotentHint":true}`), true},
		"additive":   {list(`{}`), list(`{"destructiveHint":false}`), false},
		"no longer":  {list(`{"idempotentHint":true}`), list(`{"idempotentHint":false}`), false},
		"unlisted":   {list(`{"idempotentHint":true}`), fake.RPCError(200, -32603, "no", ""), false},
	} {
		for _, mode := range []fake.Mode{fake.Modern, fake.Stateful} {
			bubbleOf(t, name, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				s.Tool("t", fake.Text("ok"))
				s.On(mcp.MethodToolsList, c.before)
				r := in("a", ``)
				mustCall(t, h, r)
				if _, ok, err := h.Tool(t.Context(), r.Session, "t"); !ok || err != nil {
					t.Fatal(ok, err)
				}
				s.On(mcp.MethodToolsList, c.now)
				<-time.After(2 * nowAge)
				r.IfRepeatable = true
				_, err := h.Call(t.Context(), r, nil)
				want := 1
				if c.made {
					want = 2
				}
				if refused := errors.Is(err, shim.ErrNotRepeatable); refused == c.made {
					t.Errorf("the call ends with %v", err)
				}
				asked(t, s, mcp.MethodToolsCall, want)
			})
		}
	}
}

// A server that does not look at the cursor lists its tools once for many calls, and the log says so once.
func TestListWithoutEnd(t *testing.T) {
	page := func(n int, cursor string) string {
		return fmt.Sprintf(`{"resultType":"complete","ttlMs":60000,"tools":[{"name":"t%d","inputSchema":{"type":"object"}}],"nextCursor":%s}`, n, cursor)
	}
	for name, next := range map[string]func(n int) string{
		"one cursor":   func(int) string { return page(0, `"8"`) },
		"an empty one": func(n int) string { return page(n, `""`) },
		"in a circle":  func(n int) string { return page(n, fmt.Sprintf(`"%d"`, n%3)) },
		"always new":   func(n int) string { return page(0, fmt.Sprintf(`"%d"`, n)) },
		"a number":     func(int) string { return page(0, `8`) },
	} {
		for _, mode := range []fake.Mode{fake.Modern, fake.Stateful} {
			var log bytes.Buffer
			bubbleOf(t, name, mode, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				n := 0
				s.On(mcp.MethodToolsList, func(x *fake.Exchange) {
					n++
					fake.Result(next(n - 1))(x)
				})
				for range 3 {
					if _, ok, err := h.Tool(t.Context(), shim.Session{Key: "a"}, "t0"); !ok || err != nil {
						t.Errorf("the list has the tool: %t, %v", ok, err)
					}
				}
				if n > 4 {
					t.Errorf("asked %d times", n)
				}
			})
			if strings.Count(log.String(), "does not end") != 1 {
				t.Errorf("%s: the log says %s", name, log.String())
			}
		}
	}
}

// A list of several pages is read whole.
func TestPagesOfTools(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On(mcp.MethodToolsList, func(x *fake.Exchange) {
			n := len(s.Seen(mcp.MethodToolsList))
			cursor := fmt.Sprintf(`,"nextCursor":"%d"`, n)
			if n == 20 {
				cursor = ""
			}
			fake.Result(fmt.Sprintf(`{"resultType":"complete","ttlMs":60000,"tools":[{"name":"t%d","inputSchema":{"type":"object"}}]%s}`, n, cursor))(x)
		})
		for _, name := range []string{"t1", "t20"} {
			if _, ok, err := h.Tool(t.Context(), shim.Session{}, name); !ok || err != nil {
				t.Errorf("%s: %t, %v", name, ok, err)
			}
		}
		asked(t, s, mcp.MethodToolsList, 20)
	})
}

// A server that refuses the version of the first server/discover and lists it all the same is asked again.
func TestVersionIsTriedAgain(t *testing.T) {
	for refusals, fails := range map[int]bool{1: false, 2: true} {
		bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			n := 0
			s.On("server/discover", func(x *fake.Exchange) {
				if n++; n > refusals {
					fake.Result(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{}}`)(x)
					return
				}
				fake.RPCError(400, -32022, "unsupported version", `{"supported":["2026-07-28"],"requested":"2026-07-28"}`)(x)
			})
			if _, err := h.Call(t.Context(), in("a", ``), nil); (err != nil) != fails {
				t.Errorf("after %d refusals: %v", refusals, err)
			}
		})
	}
}
