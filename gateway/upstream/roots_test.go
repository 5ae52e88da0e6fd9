package upstream

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
)

// rooted is a modern client that has roots.
func rooted() shim.Session { return shim.Session{Key: "a", Capabilities: []byte(`{"roots":{}}`)} }

// asksRoots reports whether a client finds that its server asks for roots, and how long that took.
func asksRoots(t *testing.T, h *ServerClient, s shim.Session) (asks bool, took time.Duration) {
	t.Helper()
	d, err := h.Describe(t.Context(), s)
	must(t, err)
	begun := time.Now()
	asks = h.AsksForRoots(t.Context(), s, d)
	synctest.Wait()
	return asks, time.Since(begun)
}

// A server asks for roots as soon as it hears that its client is ready, or never, or has no stream to ask on. The gateway finds
// that out once, in a session that it ends; another replica knows it by the store. A client without roots is never asked.
func TestServerAsksForRoots(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration // 0 for never
		stream bool
		want   bool
	}{
		"at once": {time.Nanosecond, true, true}, "soon": {250 * time.Millisecond, true, true},
		"never": {0, true, false}, "without a stream": {time.Nanosecond, false, false},
	} {
		bubbleOf(t, name, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			other := shareSessions(t, h)
			if !c.stream {
				s.On("GET", fake.Status(http.StatusMethodNotAllowed, "", ""))
			}
			s.On("notifications/initialized", func(x *fake.Exchange) {
				if c.after > 0 {
					time.AfterFunc(c.after, func() { s.Request("1", "roots/list", `{}`) })
				}
				fake.Status(http.StatusAccepted, "", "")(x)
			})
			if asks, _ := asksRoots(t, h, shim.Session{Key: "a"}); asks {
				t.Error("a client without roots counts as asked")
			}
			asks, took := asksRoots(t, h, rooted())
			if asks != c.want || took > rootsSoon+10*time.Millisecond || !c.stream && took > 0 {
				t.Errorf("asks %t, after %v", asks, took)
			}
			before := len(s.Seen("initialize"))
			for _, client := range []*ServerClient{h, other} {
				if asks, took := asksRoots(t, client, rooted()); asks != c.want || took > 0 {
					t.Errorf("afterwards: asks %t, after %v", asks, took)
				}
			}
			if n := len(s.Seen("initialize")) - before; n > 1 { // that in which the other client is described
				t.Errorf("%d more sessions", n)
			}
			pauseFor(t, time.Minute)
			if _, deleted, _ := s.Sessions(); deleted != 1 {
				t.Errorf("%d sessions are ended", deleted)
			}
			check(t, other.Close(t.Context()))
		})
	}
}

// A server that did not ask in time does so later, in the session of some client. From then on all replicas know it, and also
// one that begins after that.
func TestServerAsksForRootsLater(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		other := shareSessions(t, h)
		for _, client := range []*ServerClient{h, other} {
			if asks, _ := asksRoots(t, client, rooted()); asks {
				t.Error("it has asked")
			}
		}
		one := hearIn(t, h, shim.Session{Key: "s", Legacy: true, Shared: true, Capabilities: rooted().Capabilities}, everything)
		go s.Request("7", "roots/list", `{}`)
		synctest.Wait()
		pauseFor(t, rootsRead)
		third := another(t, h)
		third.wire.cfg.Sessions = h.wire.cfg.Sessions
		for _, client := range []*ServerClient{h, other, third} {
			if asks, _ := asksRoots(t, client, rooted()); !asks {
				t.Error("it is unknown that the server has asked")
			}
		}
		one.end(t)
		check(t, other.Close(t.Context()))
		check(t, third.Close(t.Context()))
	})
}
