package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// tenant is a context of a request with this header.
func tenant(ctx context.Context, value string) context.Context {
	return forward.With(ctx, &forward.Parts{Header: http.Header{"X-Tenant": {value}}})
}

func TestMark(t *testing.T) {
	seen := map[string]string{}
	for name, h := range map[string]http.Header{
		"a": {"A": {"1"}}, "other value": {"A": {"2"}}, "other name": {"B": {"1"}}, "both": {"A": {"1"}, "B": {"1"}},
		"twice": {"A": {"1", "1"}}, "joined": {"A": {"11"}}, "empty": {"A": {""}}, "value as a name": {"A": {"1", "B", "1"}},
	} {
		mark := forward.Mark(forward.With(t.Context(), &forward.Parts{Header: h}))
		if seen[mark] != "" || mark == "" || strings.Contains(mark, "1\x00") {
			t.Errorf("%s is marked as %q is: %q", name, seen[mark], mark)
		}
		seen[mark] = name
	}
	if forward.Mark(t.Context()) != "" || forward.Mark(forward.With(t.Context(), &forward.Parts{Host: "h"})) != "" {
		t.Error("a request without such headers has a mark")
	}
	if forward.Mark(forward.Carry(context.Background(), tenant(t.Context(), "a"))) != forward.Mark(tenant(t.Context(), "a")) {
		t.Error("the headers are not carried")
	}
}

// TestHeadersAreLost: a call that came with headers does not go on without them, in whatever words: it
// could be another client's then. One that came without goes on.
func TestHeadersAreLost(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		r := in("a", ``)
		r.Session.Mark = forward.Mark(tenant(t.Context(), "acme"))
		must(t, errorOf(h.Call(tenant(t.Context(), "acme"), r, nil)))
		before := len(s.Seen("tools/call"))
		for name, ctx := range map[string]context.Context{"none": t.Context(), "others": tenant(t.Context(), "b")} {
			_, err := h.Call(ctx, r, nil)
			_, again := h.Resume(ctx, r, []byte(`{"era":"legacy","version":"2025-11-25","session":"s","id":"r-1","last":"1"}`), nil)
			for _, err := range []error{err, again} {
				var ue *shim.UpstreamError
				if !errors.As(err, &ue) || !errors.Is(err, forward.ErrUnknownHeaders) || strings.Contains(err.Error(), "acme") {
					t.Errorf("with %s: %v", name, err)
				}
			}
		}
		if n := len(s.Seen("tools/call")); n != before {
			t.Errorf("%d calls were made without the headers", n-before)
		}
		if got := s.Seen("tools/call")[0].Header.Get("X-Tenant"); got != "acme" {
			t.Errorf("the server was sent %q", got)
		}
	})
}

// wallet is a Credential of the tests.
type wallet struct {
	own, later, brought string
	heard               []string
	method              string    // of the request that was answered last
	sent                time.Time // likewise
}

func (w *wallet) Own() (string, bool)                              { return w.own, true }
func (w *wallet) Later() (string, bool)                            { return w.later, true }
func (w *wallet) Brought() (string, bool)                          { return w.brought, true }
func (*wallet) Ready(context.Context, func() (string, bool)) error { return nil }
func (*wallet) Waits() bool                                        { return false }
func (w *wallet) Hear(value, method string, sent time.Time, status int) {
	w.method, w.sent = method, sent
	w.heard = append(w.heard, fmt.Sprint(value, " ", status))
}
func (*wallet) Challenge(_ int, values []string) []string { return append(values, "seen") }
func (*wallet) Bring(_, _ string)                         {}

// TestRefusedAnswer: an answer whose token the server refuses ends the call, and goes out with no other token.
func TestRefusedAnswer(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) { x.Ask(`7`, "elicitation/create", elicit) })
		s.OnAnswer(func(x *fake.Exchange) bool {
			fake.Status(401, "", "")(x)
			return false
		})
		w := &wallet{own: "Bearer own", later: "Bearer own", brought: "Bearer brought"}
		sink := &shimtest.Sink{OnAsk: func(context.Context, ...shim.Question) ([]shim.Answer, error) {
			return []shim.Answer{{Result: json.RawMessage(`{"action":"accept"}`)}}, nil
		}}
		r := in("a", all)
		r.Session.Principal, r.Rounds = "alice", true
		var ue *shim.UpstreamError
		_, err := h.Call(forward.With(t.Context(), &forward.Parts{Credential: w}), r, sink)
		if !errors.As(err, &ue) || !strings.Contains(ue.Message, "401") {
			t.Errorf("the call ends with %v", err)
		}
		var sent []string
		for _, answer := range s.Seen("POST") {
			sent = append(sent, answer.Header.Get("Authorization"))
		}
		if !slices.Equal(sent, []string{"Bearer brought"}) {
			t.Errorf("the answer went out with %q", sent)
		}
	})
}

// TestRefusedAnswerOfAModernCall: a call that a modern server has made again with an answer goes out with the token of
// the request that brought it, and with no stronger one if the server refuses that.
func TestRefusedAnswerOfAModernCall(t *testing.T) {
	for status, pass := range map[int]string{401: "Bearer other", 403: "Bearer other", 200: "Bearer brought"} {
		bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.On("tools/call", func(x *fake.Exchange) {
				if x.R.Header.Get("Authorization") != pass {
					fake.Status(status, "", "")(x)
					return
				}
				fake.Text("ok")(x)
			})
			w := &wallet{own: "Bearer own", later: "Bearer own", brought: "Bearer brought"}
			r := in("a", all)
			r.Session.Principal, r.Retry = "alice", &shim.Retry{Answers: map[string]json.RawMessage{"q": json.RawMessage(`{"action":"accept"}`)}}
			if _, err := h.Call(forward.With(t.Context(), &forward.Parts{Credential: w}), r, nil); (err == nil) != (status == 200) {
				t.Errorf("status %d: the call ends with %v", status, err)
			}
			for _, call := range s.Seen("tools/call") {
				if got := call.Header.Get("Authorization"); got != "Bearer brought" {
					t.Errorf("status %d: the answer went out with %q", status, got)
				}
			}
		})
	}
}

// TestRefusedListOfAModernCall: a token that came with an answer, and that the server refuses when its tools are listed for
// the call, ends the call as well: nobody waits for another token.
func TestRefusedListOfAModernCall(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On("tools/list", fake.Status(401, "", ""))
		r := in("a", all)
		r.Session.Principal, r.Retry = "alice", &shim.Retry{Answers: map[string]json.RawMessage{"q": json.RawMessage(`{"action":"accept"}`)}}
		w := &wallet{own: "Bearer own", later: "Bearer own", brought: "Bearer brought"}
		var ue *shim.UpstreamError
		if _, err := h.Call(forward.With(t.Context(), &forward.Parts{Credential: w}), r, nil); !errors.As(err, &ue) || !strings.Contains(ue.Message, "401") {
			t.Errorf("the call ends with %v", err)
		}
		if n := len(s.Seen("tools/call")); n > 0 {
			t.Errorf("the answer went out %d times", n)
		}
	})
}

// TestNoTokenStandsInForTheFirstRequest: a call goes out with the token that it came with, and a refusal of
// that is the client's, whatever other token there is. What goes on with a call is sent once more with
// the token that stands in.
func TestNoTokenStandsInForTheFirstRequest(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.On("tools/call", func(x *fake.Exchange) {
			if x.R.Header.Get("Authorization") == "Bearer own" {
				fake.Status(401, "", "")(x)
				return
			}
			fake.Text("ok")(x)
		})
		sent := func() (values []string) {
			for _, call := range s.Seen("tools/call") {
				values = append(values, call.Header.Get("Authorization"))
			}
			return values
		}
		w := &wallet{own: "Bearer own", later: "Bearer other"}
		ctx := forward.With(t.Context(), &forward.Parts{Credential: w})
		r := in("a", ``)
		r.Session.Principal = "alice"
		var refusal *forward.ServerRefusal
		var ue *shim.UpstreamError
		if _, err := h.Call(ctx, r, nil); !errors.As(err, &ue) || !errors.As(ue.Err, &refusal) || refusal.Status != 401 || !slices.Equal(refusal.Challenges, []string{"seen"}) {
			t.Errorf("the first request: %v", err)
		}
		if got := sent(); !slices.Equal(got, []string{"Bearer own"}) {
			t.Errorf("the first request went out with %q", got)
		}
		w.later = w.own // until it is refused
		r.Retry = &shim.Retry{}
		s.On("tools/call", func(x *fake.Exchange) {
			if x.R.Header.Get("Authorization") == "Bearer own" {
				w.later = "Bearer other"
				fake.Status(401, "", "")(x)
				return
			}
			fake.Text("ok")(x)
		})
		if _, err := h.Call(ctx, r, nil); err != nil {
			t.Errorf("the next round: %v", err)
		}
		if got := sent(); !slices.Equal(got, []string{"Bearer own", "Bearer own", "Bearer other"}) {
			t.Errorf("went out with %q", got)
		}
		if !slices.Contains(w.heard, "Bearer own 401") || !slices.Contains(w.heard, "Bearer other 200") || w.method != "tools/call" || !w.sent.Equal(time.Now()) {
			t.Errorf("heard %q, last of a %s that was sent at %v", w.heard, w.method, w.sent)
		}
	})
}

// left is the wallet of a client that has left.
type left struct{ wallet }

func (*left) Waits() bool { return true }

// TestRefusedDiscover: a server that refuses the token of a call which goes on is asked once which era it
// speaks, and not again and again. The refusal counts for the token, and so does the next answer.
func TestRefusedDiscover(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		asked := 0
		s.On("server/discover", func(x *fake.Exchange) {
			if asked++; asked > 10 {
				fake.Status(500, "", "")(x)
				return
			}
			fake.Status(401, "", "")(x)
		})
		w := &left{wallet{own: "Bearer own", later: "Bearer own"}}
		r := in("a", ``)
		r.Session.Principal, r.Retry = "alice", &shim.Retry{}
		_, err := h.Call(forward.With(t.Context(), &forward.Parts{Credential: w}), r, nil)
		var refusal *forward.ServerRefusal
		if !errors.As(err, &refusal) || asked != 1 || !slices.Equal(w.heard, []string{"Bearer own 401"}) {
			t.Errorf("%v after %d requests, heard %q", err, asked, w.heard)
		}
		s.On("server/discover", fake.RPCError(200, -32601, "method not found", ""))
		_, _ = h.Call(forward.With(t.Context(), &forward.Parts{Credential: w}), r, nil) // there is no other era
		if !slices.Contains(w.heard, "Bearer own 200") {
			t.Errorf("at last it heard %q", w.heard)
		}
	})
}

// TestAdmitOpensNoSession: Admit asks in an existing session. It opens none with the token of a caller who is not
// yet let in, since the server would take that session for the caller's own.
func TestAdmitOpensNoSession(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		m := newSharedMap()
		h.wire.cfg.Sessions = m
		s.Tool("t", fake.Text("ok"))
		as := func(token string) context.Context {
			return forward.With(t.Context(), &forward.Parts{Credential: &wallet{own: token, later: token, brought: token}})
		}
		r := in("a", ``)
		r.Session.Shared, r.Session.Legacy, r.Session.Principal = true, true, "alice"
		must(t, errorOf(h.Call(as("Bearer alice"), r, nil)))
		s.LoseSessions() // the server restarts, and is not ready at once
		s.On("initialize", fake.Status(http.StatusServiceUnavailable, "", ""))
		if _, err := h.Call(as("Bearer alice"), r, nil); err == nil {
			t.Fatal("no error")
		}
		s.On("initialize", nil)
		before := len(s.Seen("initialize"))
		s.On("ping", func(x *fake.Exchange) { // the server asks for a token
			if x.R.Header.Get("Authorization") == "" {
				fake.Status(http.StatusUnauthorized, "", "")(x)
				return
			}
			fake.Result(`{}`)(x)
		})
		proven, err := h.Admit(as("Bearer mallory"), r.Session)
		for _, x := range s.Seen("initialize")[before:] {
			t.Errorf("Admit opened a session with %q", x.Header.Get("Authorization"))
		}
		if !errors.Is(err, ErrNoSession) || proven {
			t.Errorf("proven %v, %v", proven, err)
		}
	})
}

// TestServerDecidesAboutADoubtedToken: a client that begins a session with a token which the server has refused is
// sent to the server, whatever is known of that; and a server which tells tokens apart says that it takes one.
func TestServerDecidesAboutADoubtedToken(t *testing.T) {
	for kind, first := range map[fake.Mode]string{fake.Stateful: "initialize", fake.Modern: "server/discover"} {
		bubble(t, kind, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			as := func(token string, doubted bool) context.Context {
				return forward.With(t.Context(), &forward.Parts{Credential: &wallet{own: token, later: token, brought: token}, Doubted: doubted})
			}
			r := in("a", ``)
			r.Session.Legacy, r.Session.Principal = true, "alice"
			must(t, errorOf(h.Describe(as("Bearer alice", false), r.Session)))
			before := len(s.Seen(first))
			r.Session.Key = "b"
			must(t, errorOf(h.Describe(as("Bearer alice", false), r.Session)))
			if n := len(s.Seen(first)) - before; n != 0 {
				t.Errorf("%d requests for what is known", n)
			}
			if h.TakesToken(as("Bearer alice", true)) {
				t.Error("a server that lets everybody in says nothing of a token")
			}
			before = len(s.Seen(first))
			must(t, errorOf(h.Describe(as("Bearer alice", true), r.Session)))
			if n := len(s.Seen(first)) - before; n == 0 {
				t.Error("the server was not asked")
			}
			s.On(first, func(x *fake.Exchange) {
				if x.R.Header.Get("Authorization") != "Bearer alice" {
					fake.Status(http.StatusUnauthorized, "", "")(x)
					return
				}
				fake.Result(`{"protocolVersion":"2025-11-25","supportedVersions":["2026-07-28"],"resultType":"complete","capabilities":{},"serverInfo":{"name":"s","version":"1"}}`)(x)
			})
			if !h.TakesToken(as("Bearer alice", true)) || h.TakesToken(as("Bearer mallory", true)) {
				t.Error("the server's answer was misread")
			}
		})
	}
}

// gone is the wallet of a client that has left, and whose token is no longer good: an answer waits until it signs in.
type gone struct{ wallet }

func (*gone) Waits() bool { return true }
func (g *gone) Ready(ctx context.Context, next func() (string, bool)) error {
	if value, _ := next(); value == g.own {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(10 * time.Minute):
		return context.DeadlineExceeded
	}
}

// TestResultWaitsForNoSignIn: the result of a call that has come is not held back by an answer to a question that nobody waits for any more.
func TestResultWaitsForNoSignIn(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) {
			x.Head("text/event-stream")
			x.Event(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":` + elicit + `}`)
			<-time.After(time.Minute) // the server gives its question up
			x.Event(x.Fill(result))
		})
		g := &gone{wallet{own: "Bearer own", later: "Bearer old", brought: "Bearer brought"}}
		sink := &shimtest.Sink{OnAsk: func(context.Context, ...shim.Question) ([]shim.Answer, error) {
			return []shim.Answer{{Result: json.RawMessage(`{"action":"decline"}`)}}, nil
		}}
		r := in("a", all)
		r.Session.Principal, r.Rounds = "alice", true
		begun := time.Now()
		reply, err := h.Call(forward.With(t.Context(), &forward.Parts{Credential: g}), r, sink)
		if took := time.Since(begun); took > 2*time.Minute {
			t.Errorf("the server answered after a minute, and the call after %v: %s %v", took, reply.Result, err)
		}
	})
}

// TestPingHoldsUpNothing: a ping on the GET stream holds up nothing that comes after it, also while the token of the client's last request is
// no longer good: its client listens.
func TestPingHoldsUpNothing(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		g := &gone{wallet{own: "Bearer own", later: "Bearer own", brought: "Bearer own"}}
		ctx, stop := context.WithCancelCause(forward.With(t.Context(), &forward.Parts{Credential: g}))
		heard, ready, over := make(chan time.Time, 10), make(chan struct{}), make(chan error, 1)
		go func() {
			over <- h.Listen(ctx, shim.Session{Key: "a", Principal: "alice"}, everything, func(shim.Filter) { close(ready) },
				func(shim.Notification) { heard <- time.Now() })
		}()
		<-ready
		g.later = "Bearer expired"
		go func() { s.OnGET(`{"jsonrpc":"2.0","id":"p1","method":"ping"}`) }()
		pauseFor(t, time.Second)
		said := time.Now()
		s.Notify("notifications/tools/list_changed", `{}`)
		if late := (<-heard).Sub(said); late > time.Minute {
			t.Errorf("the client hears of the change %v later", late)
		}
		stop(context.Canceled)
		<-over
	})
}
