package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/remember"
	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// introductions are the kinds of servers whose words are remembered, with the request that asks for them.
var introductions = map[fake.Mode]string{fake.Stateful: "initialize", fake.Stateless: "initialize", fake.Modern: "server/discover"}

// introduces has a server say this of itself from now on, in either era. Without ttl a modern
// one does not say how long that holds.
func introduces(s *fake.Server, instructions string, ttl string) {
	if ttl != "" {
		ttl = `,"ttlMs":` + ttl
	}
	text := fmt.Sprintf(`"capabilities":{"tools":{},"prompts":{"says":%[1]q}},"instructions":%[1]q`, instructions)
	s.On("server/discover", fake.Result(`{"resultType":"complete","supportedVersions":["2026-07-28"],`+text+ttl+`}`))
}

// legacyIntroduces is introduces of a server of the legacy era, whose sessions the fake still
// keeps.
func legacyIntroduces(s *fake.Server, instructions string) {
	s.Capabilities(fmt.Sprintf(`{"tools":{"listChanged":true},"prompts":{"says":%q}}`, instructions))
}

func says(t *testing.T, h *ServerClient, s shim.Session) string {
	t.Helper()
	d, err := h.Describe(t.Context(), s)
	must(t, err)
	word, _ := jsonrpc.GetString(d.Capabilities, "prompts", "says")
	if d.Instructions != "be kind" && d.Instructions != word {
		t.Errorf("instructions %q, capabilities %s", d.Instructions, d.Capabilities)
	}
	return word
}

// asked counts the requests of a method.
func asked(t *testing.T, s *fake.Server, method string, want int) {
	t.Helper()
	if n := len(s.Seen(method)); n != want {
		t.Errorf("%s was sent %d times, want %d", method, n, want)
	}
}

// What a server says of itself is believed for a time, and then asked for again: once,
// however many need it.
func TestDescriptionIsRenewed(t *testing.T) {
	for mode, method := range introductions {
		for ttl, fresh := range map[string]time.Duration{
			"": remember.Usual, "0": remember.Least, "90000": 90 * time.Second, "1e99": remember.Most, "-1": remember.Usual, `"x"`: remember.Usual,
		} {
			if mode != fake.Modern && ttl != "" {
				continue
			}
			bubble(t, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				say := func(word string) {
					if mode == fake.Modern {
						introduces(s, word, ttl)
					} else {
						legacyIntroduces(s, word)
					}
				}
				several := func(want string) {
					t.Helper()
					var wg sync.WaitGroup
					for i := range 5 {
						wg.Go(func() {
							if got := says(t, h, shim.Session{Key: fmt.Sprint(i)}); got != want {
								t.Errorf("mode %d, ttl %q: %q, want %q", mode, ttl, got, want)
							}
						})
					}
					wg.Wait()
				}
				say("one")
				several("one")
				asked(t, s, method, 1)
				say("two")
				pauseFor(t, fresh-time.Second)
				several("one")
				asked(t, s, method, 1)
				pauseFor(t, time.Second)
				several("two")
				asked(t, s, method, 2)
			})
		}
	}
}

// The old answer serves while there is no new one, and the server is left alone for a while.
func TestDescriptionCannotBeRenewed(t *testing.T) {
	for mode, method := range introductions {
		for name, broken := range map[string]fake.Behaviour{
			"error": fake.Status(503, "", ""), "nonsense": fake.HTML(), "cut": func(x *fake.Exchange) { x.Cut() },
		} {
			bubble(t, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				want := says(t, h, shim.Session{Key: "a"})
				s.On(method, broken)
				if mode == fake.Modern { // or it would be taken for a legacy server
					s.On("initialize", broken)
				}
				pauseFor(t, remember.Usual)
				before := len(s.Seen(method))
				for range 5 {
					if got := says(t, h, shim.Session{Key: "a"}); got != want {
						t.Errorf("mode %d, %s: %q", mode, name, got)
					}
				}
				if n := len(s.Seen(method)) - before; n == 0 || n > 5 {
					t.Errorf("mode %d, %s: asked %d times", mode, name, n)
				}
				s.On(method, nil)
				legacyIntroduces(s, "new")
				pauseFor(t, remember.Least)
				if got := says(t, h, shim.Session{Key: "a"}); got != "new" {
					t.Errorf("mode %d, %s: afterwards %q", mode, name, got)
				}
			})
		}
	}
}

// Who needs an answer does not wait long for a new one where there is an old one.
func TestRenewalIsSlow(t *testing.T) {
	for mode, method := range introductions {
		bubble(t, mode, Config{StartTimeout: time.Minute}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			says(t, h, shim.Session{Key: "a"})
			tool := func() {
				t.Helper()
				if _, ok, err := h.Tool(t.Context(), shim.Session{Key: "a"}, "t"); !ok || err != nil {
					t.Errorf("%v, %v", ok, err)
				}
			}
			tool()
			release := make(chan struct{})
			slowly := func(x *fake.Exchange) {
				<-release
				fake.Status(503, "", "")(x)
			}
			pauseFor(t, remember.Usual)
			s.On(method, slowly)
			s.On("tools/list", slowly)
			begin := time.Now()
			says(t, h, shim.Session{Key: "a"})
			if took := time.Since(begin); took != remember.Wait {
				t.Errorf("mode %d: %s", mode, took)
			}
			begin = time.Now()
			tool()
			if took := time.Since(begin); took != min(listPatience, remember.Wait) {
				t.Errorf("mode %d: %s for the tools", mode, took)
			}
			close(release)
			synctest.Wait()
			begin = time.Now()
			says(t, h, shim.Session{Key: "a"})
			tool()
			if took := time.Since(begin); took != 0 {
				t.Errorf("mode %d: %s after the failure", mode, took)
			}
		})
	}
}

// A legacy server that was restarted as another one is met by the first call that finds its
// session lost. Then everybody hears what the new one says.
func TestRestartedServer(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		legacyIntroduces(s, "old")
		a, b := shim.Session{Key: "a"}, shim.Session{Key: "b", Capabilities: json.RawMessage(`{"roots":{}}`)}
		for _, ses := range []shim.Session{a, b} {
			if got := says(t, h, ses); got != "old" {
				t.Errorf("%q", got)
			}
			_, _, _ = h.Tool(t.Context(), ses, "t")
		}
		pauseFor(t, remember.Least)
		s.LoseSessions()
		legacyIntroduces(s, "new")
		s.Tool("later", fake.Text("ok"))
		mustCall(t, h, in("a", ``))
		for _, ses := range []shim.Session{a, b} {
			if got := says(t, h, ses); got != "new" {
				t.Errorf("%s: %q", ses.Key, got)
			}
			if _, ok, err := h.Tool(t.Context(), ses, "later"); !ok || err != nil {
				t.Errorf("%s: %v, %v", ses.Key, ok, err)
			}
		}
	})
	// What was said just before it was restarted is believed a little longer.
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		legacyIntroduces(s, "old")
		mustCall(t, h, in("a", ``))
		b := shim.Session{Key: "b", Capabilities: json.RawMessage(`{"roots":{}}`)}
		says(t, h, b)
		s.LoseSessions()
		legacyIntroduces(s, "new")
		mustCall(t, h, in("a", ``))
		for _, want := range []string{"old", "new"} {
			if got := says(t, h, b); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			pauseFor(t, remember.Least)
		}
	})
	// One that keeps no sessions is met when its words are old.
	for _, mode := range []fake.Mode{fake.Stateless, fake.Modern} {
		bubble(t, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			for _, word := range []string{"old", "new"} {
				legacyIntroduces(s, word)
				pauseFor(t, remember.Usual)
				mustCall(t, h, in("a", ``))
				if got := says(t, h, shim.Session{Key: "a"}); got != word {
					t.Errorf("mode %d: %q", mode, got)
				}
			}
		})
	}
}

// A server that has learned the modern era is spoken to in it, once it is seen to be another.
func TestServerLearnsAnotherEra(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", ``))
		s.LoseSessions()
		legacyIntroduces(s, "new") // still of the legacy era to those who ask in it
		introduces(s, "modern", "0")
		mustCall(t, h, in("a", ``))
		if d, err := h.Describe(t.Context(), shim.Session{Key: "b", Capabilities: json.RawMessage(`{"roots":{}}`)}); err != nil || d.Era.String() != "modern" {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// list_changed renews what is known: the tools at once, what the server says of itself when it
// is needed.
func TestListChangedRenews(t *testing.T) {
	for mode, method := range map[fake.Mode]string{fake.Stateful: "initialize", fake.Modern: "server/discover"} {
		for _, list := range []string{"tools", "prompts", "resources"} {
			bubble(t, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				s.Tool("t", fake.Text("ok"))
				ses := shim.Session{Key: "a"}
				says(t, h, ses)
				tool := func(name string, want bool) {
					t.Helper()
					if _, ok, err := h.Tool(t.Context(), ses, name); ok != want || err != nil {
						t.Errorf("mode %d, %s: %s is %t, %v", mode, list, name, ok, err)
					}
				}
				tool("t", true)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				changed := `{"jsonrpc":"2.0","method":"notifications/` + list + `/list_changed","params":{}}`
				if mode == fake.Modern {
					s.On("subscriptions/listen", fake.Stream(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}}}`, changed))
				}
				heard := make(chan struct{}, 16)
				listening := make(chan struct{})
				pauseFor(t, remember.Least-time.Second)
				legacyIntroduces(s, "new")
				s.Tool("later", fake.Text("ok"))
				pauseFor(t, time.Second)
				go func() {
					_ = h.Listen(ctx, ses, shim.Filter{ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true},
						func(shim.Filter) { close(listening) }, func(shim.Notification) { heard <- struct{}{} })
				}()
				<-listening
				before := len(s.Seen(method))
				if mode == fake.Stateful {
					s.Notify("notifications/"+list+"/list_changed", `{}`)
				}
				<-heard
				asked(t, s, method, before)
				if got := says(t, h, ses); got != "new" {
					t.Errorf("mode %d, %s: %q", mode, list, got)
				}
				asked(t, s, method, before+1)
				lists := len(s.Seen("tools/list"))
				tool("later", true)
				asked(t, s, "tools/list", lists+1)
			})
		}
	}
}

// A server may say something else to clients that declare something else, and list other tools.
func TestDescriptionByCapabilities(t *testing.T) {
	const ui = `{"extensions":{"io.modelcontextprotocol/ui":{}}}`
	for mode, method := range introductions {
		bubble(t, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			declares := func(x *fake.Exchange) bool { return strings.Contains(string(x.Params), "protocol/ui") }
			answer := func(x *fake.Exchange) {
				word := "plain"
				if declares(x) {
					word = "ui"
				}
				if method == "initialize" {
					fake.Result(fmt.Sprintf(`{"protocolVersion":"2025-11-25","capabilities":{"prompts":{"says":%[1]q}},"instructions":%[1]q}`, word))(x)
				} else {
					fake.Result(fmt.Sprintf(`{"supportedVersions":["2026-07-28"],"capabilities":{"prompts":{"says":%[1]q}},"instructions":%[1]q}`, word))(x)
				}
			}
			if mode != fake.Stateful {
				s.On(method, answer)
			}
			s.On("tools/list", func(x *fake.Exchange) {
				if declares(x) {
					fake.Result(`{"tools":[{"name":"plain"},{"name":"ui"}]}`)(x)
				} else {
					fake.Result(`{"tools":[{"name":"plain"}]}`)(x)
				}
			})
			plain, declared := shim.Session{}, shim.Session{Capabilities: json.RawMessage(ui)}
			for range 2 {
				if mode != fake.Stateful {
					if a, b := says(t, h, plain), says(t, h, declared); a != "plain" || b != "ui" {
						t.Errorf("mode %d: %q and %q", mode, a, b)
					}
				}
				if mode != fake.Modern {
					continue // a legacy server looks at its session
				}
				for ses, want := range map[string]bool{"": false, ui: true} {
					_, ok, err := h.Tool(t.Context(), shim.Session{Capabilities: json.RawMessage(ses)}, "ui")
					if ok != want || err != nil {
						t.Errorf("%q: %v, %v", ses, ok, err)
					}
				}
			}
			if mode == fake.Modern {
				asked(t, s, "tools/list", 2)
			}
		})
	}
}

// What is remembered is bounded, whatever clients make up.
func TestRememberedIsBounded(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		for i := range maxSeen + 20 {
			says(t, h, shim.Session{Capabilities: json.RawMessage(fmt.Sprintf(`{"experimental":{"n":{"is":%d}}}`, i))})
		}
		n := 0
		h.memory.seen.Drop(func(sessionKey) bool { n++; return false })
		if n != maxSeen {
			t.Errorf("%d answers are kept, want %d", n, maxSeen)
		}
	})
}
