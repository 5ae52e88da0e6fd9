package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// Over HTTP/2 many calls share a connection; one that ends leaves it to the
// others.
func TestHTTP2(t *testing.T) {
	for _, m := range []fake.Mode{fake.Stateful, fake.Modern} {
		s := fake.NewHandler(t, m)
		s.Tool("t", fake.Stream(result))
		s.Tool("hang", fake.Hanging(nil))
		var old sync.Once
		web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				old.Do(func() { t.Errorf("spoken to in %s", r.Proto) })
			}
			s.ServeHTTP(w, r)
		}))
		web.EnableHTTP2 = true
		web.StartTLS()
		t.Cleanup(func() { s.Close(); web.Close() })
		h := newTestClient(t, Config{URL: web.URL})
		baseOf(h).TLSClientConfig = &tls.Config{RootCAs: web.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
		ctx, cancel := context.WithCancel(t.Context())
		hung := make(chan error, 1)
		go func() { _, err := h.Call(ctx, shimtest.Tool("hang", "h"), nil); hung <- err }()
		shimtest.Eventually(t, func() bool { return s.Runs("h") == 1 })
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { mustCall(t, h, in("a", ``)) })
		}
		cancel()
		wg.Wait()
		if err := <-hung; err != context.Canceled {
			t.Errorf("error %v", err)
		}
		if n := s.Runs("k"); n != 20 {
			t.Errorf("tool ran %d times", n)
		}
	}
}

// A connection that the server closes while it is idle may fail the next call, if
// that is under way before the end is noticed; it never repeats one.
func TestIdleConnectionDies(t *testing.T) {
	s := fake.New(t, fake.Modern)
	s.Tool("t", fake.Text("ok"))
	h := newTestClient(t, Config{URL: s.URL})
	ok := 0
	for range 5 {
		r, err := h.Call(t.Context(), in("a", ``), nil)
		if err == nil {
			ok++
		} else {
			checkKind(t, r, err, shim.KindClosed, 0)
		}
		shimtest.Eventually(t, func() bool { // a connection is idle soon after its answer
			s.CutIdle()
			n, _ := s.Conns()
			return n == 0
		})
		if n := s.Runs("k"); n != ok {
			t.Fatalf("tool ran %d times in %d calls that were answered", n, ok)
		}
	}
}

// A connection is used again after an answer of either kind.
func TestConnectionsAreReused(t *testing.T) {
	for _, do := range []fake.Behaviour{fake.Text("ok"), fake.Stream(result), fake.RPCError(400, -32602, "m", "")} {
		for _, m := range []fake.Mode{fake.Stateful, fake.Modern} {
			s := fake.New(t, m)
			s.Tool("t", do)
			h := newTestClient(t, Config{URL: s.URL})
			for range 20 {
				must(t, errorOf(h.Call(t.Context(), in("a", ``), nil)))
			}
			if n := s.Dialled(); n > 3 {
				t.Errorf("%d connections for 20 calls", n)
			}
		}
	}
}

// A server that opens a stream for a notification does not hold anybody up, and neither does one that
// does not end its response.
func TestNotificationWithoutEnd(t *testing.T) {
	for _, head := range []func(x *fake.Exchange){
		func(x *fake.Exchange) { x.Head("text/event-stream") },
		func(x *fake.Exchange) { x.W.WriteHeader(202); _ = http.NewResponseController(x.W).Flush() },
	} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", fake.Text("ok"))
			s.On("notifications/initialized", func(x *fake.Exchange) { head(x); x.Hang() })
			begun := time.Now()
			mustCall(t, h, in("a", ``))
			if d := time.Since(begun); d > time.Second {
				t.Errorf("it took %v", d)
			}
		})
	}
}

// A refusal is one by its head: a server that does not end it does not hold the call.
func TestRefusalWithoutEnd(t *testing.T) {
	for body, code := range map[string]int64{"": 0, `{"jsonrpc":"2.0","error":{"code":7,"message":"no"}}`: 7} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			s.Tool("t", func(x *fake.Exchange) {
				x.W.WriteHeader(500)
				fmt.Fprint(x.W, body)
				_ = http.NewResponseController(x.W).Flush()
				x.Hang()
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r, err := h.Call(ctx, in("a", ``), nil)
			if code != 0 {
				checkKind(t, r, err, "", code)
			} else if ue, ok := errors.AsType[*shim.UpstreamError](err); !ok || ue.Kind != shim.KindProtocol {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A server that swallows an answer without a word does not hold the call for
// ever.
func TestAnswerSwallowed(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", func(x *fake.Exchange) { x.Run(); x.Ask(`7`, "elicitation/create", elicit) })
		s.OnAnswer(func(x *fake.Exchange) bool { x.Hang(); return false })
		r, err := callIn(t, h, all, &shimtest.Sink{OnAsk: answering})
		checkKind(t, r, err, shim.KindTimeout, 0)
	})
}

// A legacy server that took the place of a modern one is found out even where it
// answers with errors of its own.
func TestLegacyCodesRaiseDoubt(t *testing.T) {
	bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.RPCError(400, -32000, "Bad Request: Server not initialized", ""))
		r, err := h.Call(t.Context(), in("a", ``), nil)
		checkKind(t, r, err, "", -32000)
		s.Become(fake.Stateless)
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, in("a", ``))
		if d, err := h.Describe(t.Context(), shim.Session{}); err != nil || d.Era.String() != "legacy" {
			t.Errorf("%+v, %v", d, err)
		}
	})
}
