package upstream

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// sharedCall is a call in the session that modern clients share.
func sharedCall() shim.Request { return in("alice", ``) }

// restart has the server know none of its sessions, and say so in these words.
func restart(s *fake.Server, words fake.Behaviour) {
	old := s.Seen("initialize")
	known := func(x *fake.Exchange) bool {
		return len(s.Seen("initialize")) > len(old) && x.R.Header.Get("Mcp-Session-Id") != "session-1"
	}
	for _, method := range []string{"ping", "tools/list"} {
		result := fake.Result(`{"tools":[]}`)
		s.On(method, func(x *fake.Exchange) {
			if known(x) {
				result(x)
			} else {
				words(x)
			}
		})
	}
	s.Tool("t", func(x *fake.Exchange) {
		if known(x) {
			fake.Text("ok")(x)
		} else {
			words(x)
		}
	})
}

// A server that was started anew says in any words that it does not know a session. The session that modern clients
// share is begun anew within seconds; it was dead until the gateway was restarted (401 with a text, 410, 500, and a 200
// with an error are reported).
func TestLostSessionInAnyWords(t *testing.T) {
	for name, words := range map[string]fake.Behaviour{
		"401": fake.Status(401, "text/plain", "Unauthorized: Session not found"),
		"403": fake.Status(403, "text/plain", "no"), "409": fake.Status(409, "", ""), "410": fake.Status(410, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"session is gone"}}`),
		"422": fake.Status(422, "", ""), "429": fake.Status(429, "", ""), "500": fake.Status(500, "application/json", `{"error":"No valid session ID provided"}`), "503": fake.Status(503, "", ""),
		"-32005": fake.RPCError(200, -32005, "Session not found", ""), "-32002": fake.RPCError(200, -32002, "Server not initialized", ""), "-32601": fake.RPCError(200, -32601, "Method not found", ""),
	} {
		bubbleOf(t, name, fake.Stateful, Config{Shared: true}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			mustCall(t, h, sharedCall())
			restart(s, words)
			if reply, err := h.Call(t.Context(), sharedCall(), nil); err == nil && reply.Error == nil {
				t.Fatal("the call succeeded")
			}
			pauseFor(t, doubtAfter+time.Millisecond)
			synctest.Wait()
			mustCall(t, h, sharedCall())
		})
	}
}

// A server in trouble keeps its sessions, and so does one that answers in them: a tool that always fails costs a ping
// now and then.
func TestSessionsThatStay(t *testing.T) {
	for name, c := range map[string]struct {
		handshake, ping fake.Behaviour
		pings           int
	}{
		"in trouble":        {fake.Status(500, "", ""), fake.Status(500, "", ""), 10},
		"the tool fails":    {nil, nil, 10},
		"ping is not known": {nil, fake.RPCError(200, -32601, "unknown", ""), 10},
		"nothing works":     {nil, fake.Status(500, "", ""), 20},
	} {
		bubbleOf(t, name, fake.Stateful, Config{Shared: true}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			mustCall(t, h, sharedCall())
			s.Tool("t", fake.Status(http.StatusInternalServerError, "", ""))
			s.On("initialize", c.handshake)
			s.On("ping", c.ping)
			if name == "in trouble" || name == "nothing works" {
				s.On("tools/list", fake.Status(500, "", ""))
			}
			for range 100 {
				_, _ = h.Call(t.Context(), sharedCall(), nil)
				pauseFor(t, time.Second)
			}
			if n := len(s.Seen("ping")); n > c.pings {
				t.Errorf("%d pings in 100 s", n)
			}
			s.On("initialize", nil)
			s.On("ping", nil)
			s.On("tools/list", nil)
			s.Tool("t", fake.Text("ok"))
			mustCall(t, h, sharedCall())
			calls := s.Seen("tools/call")
			if a, b := calls[0].Header.Get("Mcp-Session-Id"), calls[len(calls)-1].Header.Get("Mcp-Session-Id"); a != b {
				t.Errorf("session %s has become %s", a, b)
			}
		})
	}
}

// A reload drops the sessions that are in doubt, and keeps those that work.
func TestDropDoubted(t *testing.T) {
	bubble(t, fake.Stateful, Config{Shared: true}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, sharedCall())
		h.DropDoubted()
		synctest.Wait()
		mustCall(t, h, sharedCall())
		wantSessions(t, s, 1, 0, 1)
		restart(s, fake.Status(410, "", ""))
		_, _ = h.Call(t.Context(), sharedCall(), nil)
		h.DropDoubted()
		synctest.Wait()
		mustCall(t, h, sharedCall())
	})
}
