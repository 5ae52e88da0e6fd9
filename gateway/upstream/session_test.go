package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// in makes a call of the tool "t" in a session.
func in(key, caps string) shim.Request {
	r := shimtest.Tool("t", "k")
	r.Session = shim.Session{Key: key, Capabilities: json.RawMessage(caps)}
	return r
}

func mustCall(t *testing.T, h *ServerClient, r shim.Request) shim.Reply {
	t.Helper()
	reply, err := h.Call(t.Context(), r, nil)
	if err != nil || reply.Error != nil {
		t.Fatalf("call: %+v, %v", reply.Error, err)
	}
	return reply
}

func wantSessions(t *testing.T, s *fake.Server, opened, deleted, left int) {
	t.Helper()
	synctest.Wait()
	o, d, l := s.Sessions()
	if o != opened || d != deleted || l != left {
		t.Errorf("sessions: %d opened, %d deleted, %d left; want %d, %d, %d", o, d, l, opened, deleted, left)
	}
}

// One session per key and what is declared in it, however that is spelt. Numbers that differ
// are different, whatever their size, and the server reads what the first client wrote.
func TestSessionPerKey(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		const first = `{"roots":{},"sampling":{}, "extensions":{"a.b/c":{"n":9007199254740993}}}`
		for range 3 {
			mustCall(t, h, in("a", first))
		}
		mustCall(t, h, in("a", `{"extensions":{"a.b/c":{"n":9007199254740993}},"sampling":{ }, "roots":{}}`))
		wantSessions(t, s, 1, 0, 1)
		if params := string(s.Seen("initialize")[0].Params); !strings.Contains(params, `"capabilities":`+first+`,`) {
			t.Errorf("declared %s", params)
		}
		mustCall(t, h, in("a", `{"roots":{},"sampling":{},"extensions":{"a.b/c":{"n":9007199254740992}}}`))
		mustCall(t, h, in("a", ``))
		mustCall(t, h, in("a", `{}`))
		mustCall(t, h, in("b", ``))
		wantSessions(t, s, 4, 0, 4)
		h.EndSession(t.Context(), "a")
		wantSessions(t, s, 4, 3, 1)
	})
}

// A session that was adopted for one call ends with it. A GET stream for that call which begins too late
// opens no other session: nobody would use it, and nobody would end it.
func TestSessionOfOneCallStaysClosed(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		ses, _ := h.sessions.adoptSession(t.Context(), shim.Session{}, &generation{target: target{gen: 1, session: "s", version: mcp.Version20251125}})
		ses.releaseSession()
		if l, err := ses.openGeneration(t.Context()); !errors.Is(err, errOver) {
			t.Errorf("it was opened: %+v, %v", l, err)
		}
		wantSessions(t, s, 0, 0, 0)
	})
}

// Whoever declares something else with each call gets an answer, and no session that stays.
func TestSessionsPerKeyAreBounded(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		const calls = 3 * maxVariants
		for i := range calls {
			mustCall(t, h, in("a", fmt.Sprintf(`{"experimental":{"n":{"is":%d}}}`, i)))
		}
		mustCall(t, h, in("a", `{"experimental":{"n":{"is":0}}}`)) // one that is there
		mustCall(t, h, in("b", ``))
		wantSessions(t, s, calls+1, calls-maxVariants, maxVariants+1)
		h.EndSession(t.Context(), "a")
		wantSessions(t, s, calls+1, calls, 1)
		mustCall(t, h, in("a", `{}`))
		wantSessions(t, s, calls+2, calls, 2)
	})
}

// Every later request names the session and the version.
func TestSessionHeaders(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", ``))
		for _, m := range []string{"notifications/initialized", "tools/call"} {
			got := s.Seen(m)[0].Header
			if got.Get("Mcp-Session-Id") != "session-1" || got.Get("Mcp-Protocol-Version") != "2025-11-25" {
				t.Errorf("%s: headers %v", m, got)
			}
		}
		if got := s.Seen("initialize")[0].Header; got.Get("Mcp-Session-Id") != "" {
			t.Errorf("initialize names a session: %v", got)
		}
		if id := s.Seen("tools/call")[0].ID; id != "3" { // servers may read numbers alone
			t.Errorf("id %s", id)
		}
	})
}

// Anonymous calls have a session each, or share one. A server without sessions is greeted once, and nothing is deleted.
func TestAnonymousSessions(t *testing.T) {
	for _, c := range []struct {
		mode                  fake.Mode
		shared                bool
		opened, deleted, left int
	}{{fake.Stateful, false, 2, 2, 0}, {fake.Stateful, true, 1, 0, 1}, {fake.Stateless, false, 1, 0, 0}} {
		bubble(t, c.mode, Config{Shared: c.shared}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			mustCall(t, h, in("", ``))
			mustCall(t, h, in("", ``))
			wantSessions(t, s, c.opened, c.deleted, c.left)
			asked(t, s, "DELETE", c.deleted)
		})
	}
}

// A session ends once it has been idle for so long, and not during a call. One that is to end during a call is deleted
// after it.
func TestIdleSession(t *testing.T) {
	bubble(t, fake.Stateful, Config{SessionIdle: time.Minute}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		release := make(chan struct{})
		s.Tool("t", func(x *fake.Exchange) { <-release; fake.Text("ok")(x) })
		f := aloftIn(t, h, in("a", ``), nil)
		pauseFor(t, time.Hour)
		wantSessions(t, s, 1, 0, 1) // pinned by the call
		release <- struct{}{}
		f.ended(t)
		pauseFor(t, 59*time.Second)
		wantSessions(t, s, 1, 0, 1)
		pauseFor(t, 2*time.Second)
		wantSessions(t, s, 1, 1, 0)
		f = aloftIn(t, h, in("a", ``), nil)
		h.EndSession(t.Context(), "a")
		wantSessions(t, s, 2, 1, 1)
		release <- struct{}{}
		f.ended(t)
		wantSessions(t, s, 2, 2, 0)
	})
}

func pauseFor(t *testing.T, d time.Duration) {
	t.Helper()
	must(t, work.Pause(t.Context(), d))
}

// A lost session is opened anew once, however many calls meet the loss, and the
// calls are sent again: 404 proves that they were not begun.
func TestLostSession(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", ``))
		s.LoseSessions()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				check(t, errorOf(h.Call(t.Context(), in("a", ``), nil)))
			})
		}
		wg.Wait()
		if n := s.Runs("k"); n != 11 {
			t.Errorf("tool ran %d times, want 11", n)
		}
		wantSessions(t, s, 2, 0, 1)
	})
}

// A server that loses every session is given up after the second.
func TestLostAgain(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On("tools/call", fake.Status(404, "text/plain", "gone"))
		r, err := h.Call(t.Context(), in("a", ``), nil)
		checkKind(t, r, err, shim.KindSession, 0)
		asked(t, s, "tools/call", 2)
	})
}

// 400 to a session proves nothing: the call is not repeated, but the session is
// given up if the server does not answer a ping in it either.
func TestBadSession(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On("tools/call", fake.Status(400, "text/plain", "No valid session"))
		s.On("ping", fake.Status(400, "text/plain", "No valid session"))
		r, err := h.Call(t.Context(), in("a", ``), nil)
		checkKind(t, r, err, shim.KindProtocol, 0)
		asked(t, s, "tools/call", 1)
		s.On("tools/call", nil)
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", ``))
		wantSessions(t, s, 2, 0, 2)
	})
}

// An answer about one request does not end the session, whatever its status.
func TestSessionOutlivesRefusals(t *testing.T) {
	for name, refusal := range map[string]fake.Behaviour{
		"invalid params":            fake.RPCError(400, -32602, "no such argument", ""),
		"server error":              fake.RPCError(400, -32000, "not today", ""),
		"no such method":            fake.RPCError(404, -32601, "what?", ""),
		"a proxy's page":            fake.Status(400, "text/html", "<html>Request too large</html>"),
		"nothing said":              fake.Status(400, "", ""),
		"not to be found out":       fake.Status(400, "", ""),
		"a server that has no ping": fake.Status(400, "", ""),
	} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			switch name {
			case "not to be found out":
				s.On("ping", fake.Status(503, "", ""))
			case "a server that has no ping":
				s.On("ping", fake.RPCError(200, -32601, "what?", ""))
			}
			e := hear(t, h, "a", everything)
			s.Tool("t", refusal)
			_, _ = h.Call(t.Context(), in("a", ``), nil)
			if n := len(s.Seen("tools/call")); n != 1 {
				t.Errorf("%s: sent %d times", name, n)
			}
			s.Tool("t", fake.Text("ok"))
			mustCall(t, h, in("a", ``))
			wantSessions(t, s, 1, 0, 1)
			if n := len(s.Seen("GET")); n != 1 || s.Listeners() != 1 {
				t.Errorf("%s: %d GET streams asked for, %d open", name, n, s.Listeners())
			}
			e.end(t)
		})
	}
}

// A call whose stream cannot be resumed does not end the session, either.
func TestSessionOutlivesLostStreams(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", steps(5, 0, 0))
		cp := detach(t, h, in("a", ``), &shimtest.Sink{}, 2*time.Second)
		s.On("GET", fake.Status(400, "text/plain", "stream replay unsupported"))
		o := another(t, h)
		r, err := o.Resume(t.Context(), in("a", ``), cp, nil)
		checkKind(t, r, err, shim.KindClosed, 0)
		s.Tool("t", fake.Text("ok"))
		mustCall(t, o, in("a", ``))
		wantSessions(t, s, 1, 0, 1)
		pauseFor(t, time.Minute) // for the fake's own work
	})
}

// A detached call leaves its session to whoever resumes it.
func TestDetachKeepsSession(t *testing.T) {
	bubble(t, fake.Stateful, Config{SessionIdle: time.Minute}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Hanging(nil))
		aloftIn(t, h, in("", ``), nil).leave(t, shim.ErrDetached)
		asked(t, s, "notifications/cancelled", 0)
		pauseFor(t, time.Hour)
		wantSessions(t, s, 1, 0, 1)
	})
}

// Any other end is told to the server, before the connection goes.
func TestCancelIsTold(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		gone := make(chan struct{}, 1)
		s.Tool("t", func(x *fake.Exchange) {
			x.Hang()
			if len(s.Seen("notifications/cancelled")) == 1 {
				gone <- struct{}{}
			}
		})
		aloftIn(t, h, in("a", ``), nil).leave(t, context.Canceled)
		<-gone
		c := s.Seen("notifications/cancelled")[0]
		if !strings.Contains(string(c.Params), `"requestId":`+s.Seen("tools/call")[0].ID) {
			t.Errorf("cancelled with %s", c.Params)
		}
	})
}

// A server that does not take the cancellation does not hold up the caller.
func TestCancelUnheard(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Hanging(nil))
		s.On("notifications/cancelled", func(x *fake.Exchange) { x.Hang() })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := h.Call(ctx, in("a", ``), nil)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Minute+cancelTimeout {
			t.Errorf("error %v after %v", err, time.Since(start))
		}
	})
}

func TestIdleTimeout(t *testing.T) {
	for _, m := range []fake.Mode{fake.Stateful, fake.Modern} {
		bubble(t, m, Config{IdleTimeout: 10 * time.Second}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", func(x *fake.Exchange) { // comments keep it alive, then silence
				for range 5 {
					x.Comment()
					_ = work.Pause(x.R.Context(), 9*time.Second)
				}
				x.Hang()
			})
			start := time.Now()
			_, err := h.Call(t.Context(), in("a", ``), nil)
			var ue *shim.UpstreamError
			if !errors.As(err, &ue) || ue.Kind != shim.KindTimeout || time.Since(start) != 46*time.Second {
				t.Errorf("error %v after %v, want a timeout after 46s", err, time.Since(start))
			}
		})
	}
}

// An answer that comes slowly is no silence, in whatever it comes.
func TestSlowAnswerIsNoSilence(t *testing.T) {
	for kind, frame := range map[string][2]string{"application/json": {"", ""}, "text/event-stream": {"data: ", "\n\n"}} {
		for _, m := range []fake.Mode{fake.Stateful, fake.Modern} {
			bubble(t, m, Config{IdleTimeout: 10 * time.Second}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				s.Tool("t", func(x *fake.Exchange) {
					x.Head(kind)
					text := frame[0] + x.Fill(result) + frame[1]
					for i := range 5 {
						fmt.Fprint(x.W, text[i*len(text)/5:(i+1)*len(text)/5])
						_ = http.NewResponseController(x.W).Flush()
						_ = work.Pause(x.R.Context(), 9*time.Second)
					}
				})
				if r, err := h.Call(t.Context(), in("a", ``), nil); err != nil || r.Result == nil {
					t.Errorf("%s: %+v, %v", kind, r, err)
				}
			})
		}
	}
}

// A client hears the log messages from its level on. A modern server is told the level with
// the call, and a legacy one before it.
func TestLogLevel(t *testing.T) {
	tell := func(x *fake.Exchange) {
		for _, level := range []string{"debug", "info", "error"} {
			x.Event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + level + `","data":1}}`)
		}
		x.Event(x.Fill(result))
	}
	for _, c := range []struct{ client, asked, heard string }{
		{"", "", ""},
		{"any", "", "debug info error"}, // a legacy client that has set no level
		{"error", "error", "error"},
		{"debug", "debug", "debug info error"},
	} {
		for _, mode := range []fake.Mode{fake.Stateful, fake.Modern} {
			if mode == fake.Modern && c.client == "any" {
				continue // its session says ""
			}
			bubble(t, mode, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
				s.Tool("t", tell)
				r := in("a", ``)
				r.LogLevel = c.client
				var sink shimtest.Sink
				reply, err := h.Call(t.Context(), r, &sink)
				checkKind(t, reply, err, "", 0)
				var asked string
				for _, x := range s.Seen("logging/setLevel") {
					asked, _ = jsonrpc.GetString(x.Params, "level")
				}
				for _, x := range s.Seen("tools/call") {
					if level, ok := jsonrpc.GetString(x.Params, "_meta", mcp.MetaLogLevel); ok {
						asked = level
					}
				}
				var heard []string
				_, logs := sink.Heard()
				for _, l := range logs {
					heard = append(heard, l.Level)
				}
				if got := strings.Join(heard, " "); asked != c.asked || got != c.heard {
					t.Errorf("client %q: asked for %q, heard %q", c.client, asked, got)
				}
			})
		}
	}
}

// Callers that share a session have the server say what the least severe of their levels lets through. A new session gets
// that level again, and a server without log messages is asked for none.
func TestLogLevelOfSharedSession(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		for _, level := range []string{"error", "", "debug", "info"} {
			r := in("a", ``)
			r.LogLevel = level
			mustCall(t, h, r)
		}
		s.LoseSessions()
		mustCall(t, h, in("a", ``))
		var set []string
		for _, x := range s.Seen("logging/setLevel") {
			level, _ := jsonrpc.GetString(x.Params, "level")
			set = append(set, level)
		}
		if got := strings.Join(set, " "); got != "error debug debug" {
			t.Errorf("levels that were set: %s", got)
		}
	})
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		s.Capabilities(`{"tools":{}}`)
		r := in("a", ``)
		r.LogLevel = "debug"
		mustCall(t, h, r)
		asked(t, s, "logging/setLevel", 0)
	})
}
