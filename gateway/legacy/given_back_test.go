package legacy_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

// counted is a front of a gateway that counts what the gateway holds for its clients.
type counted struct {
	net.Listener
	url      string
	conns    atomic.Int64 // descriptors
	handlers atomic.Int64 // requests that are being served
	broken   atomic.Int64 // requests whose connection has broken
}

// Accept counts a descriptor until it is closed.
func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.conns.Add(1)
	return &countedConn{Conn: conn, of: c}, nil
}

type countedConn struct {
	net.Conn
	of     *counted
	closed atomic.Bool
}

func (c *countedConn) Close() error {
	if !c.closed.Swap(true) {
		c.of.conns.Add(-1)
	}
	return c.Conn.Close()
}

func newCounted(t *testing.T, h http.Handler) *counted {
	c := &counted{}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.handlers.Add(1)
		defer c.handlers.Add(-1)
		defer context.AfterFunc(r.Context(), func() { c.broken.Add(1) })()
		h.ServeHTTP(w, r)
	}))
	c.Listener, front.Listener = front.Listener, c
	front.Start()
	t.Cleanup(front.Close)
	c.url = front.URL + "/up/mcp"
	return c
}

// beginPost sends a request of the session, with more headers; leave breaks its connection.
func (c *rawClient) beginPost(body string, header ...string) (leave func()) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() { // ends with the request
		defer close(done)
		if resp, err := c.do(ctx, http.MethodPost, body, header...); err == nil {
			defer resp.Body.Close()
			<-ctx.Done()
		}
	}()
	return func() { cancel(); <-done }
}

// TestConnectionsOfClientsThatLeft: a call of a session goes on when its client has gone (X3), and costs no connection
// from then on, however its answer was to go out; a tasks/result costs no handler either. A call whose stream is in
// the log can be resumed.
func TestConnectionsOfClientsThatLeft(t *testing.T) {
	for name, c := range map[string]struct{ results, logged bool }{
		"a call":              {},
		"a call, in the log":  {logged: true},
		"results":             {results: true},
		"results, in the log": {results: true, logged: true},
	} {
		t.Run(name, func(t *testing.T) {
			stack := newLegacyReplicas(t, func(of *config.Config) {
				if !c.results {
					of.Upstreams[0].Defaults.Tasks = config.TasksNever
				}
				if c.logged {
					resumeSoon(of)
				}
			})
			front := newCounted(t, stack.gates[0].Handler())
			a := newRawClient(t, front.url).initialize("")
			bodies := []string{waitCall}
			if c.results {
				id := a.task("wait")
				bodies = nil
				for i := range 5 {
					bodies = append(bodies, fmt.Sprintf(`{"jsonrpc":"2.0","id":"r%d","method":"tasks/result","params":{"taskId":%q}}`, i, id))
				}
			}
			var primed string
			var leave []func()
			for _, body := range bodies {
				if !c.logged {
					leave = append(leave, a.beginPost(body))
					continue
				}
				stream := openSSE(t, a, http.MethodPost, body, "")
				primed, _, _ = stream.event()
				leave = append(leave, stream.close)
			}
			wiretest.Await(t, stack.session.started, "the tool")
			waitUntil(t, "requests served", func() bool { return front.handlers.Load() == int64(len(bodies)) })
			for _, l := range leave {
				l()
			}
			a.http.CloseIdleConnections()
			waitUntil(t, "connections while the call goes on", func() bool { return front.conns.Load() == 0 })
			if c.results {
				waitUntil(t, "requests served after their clients have gone", func() bool { return front.handlers.Load() == 0 })
			}
			stack.session.proceed <- struct{}{} // the tool has not been cancelled
			waitUntil(t, "requests served", func() bool { return front.handlers.Load() == 0 })
			if c.results || !c.logged {
				return
			}
			if _, data, _ := openSSE(t, stack.on(t, 1, a), http.MethodGet, "", primed).event(); !strings.Contains(data, `"id":"w1"`) {
				t.Errorf("resumed: %s", data)
			}
		})
	}
}

// TestLegacyCallsInFlight: a call of a session counts until it ends, also when its client has
// gone. What makes room goes through.
func TestLegacyCallsInFlight(t *testing.T) {
	stack := newLegacyStack(t, false, func(c *config.Config) { c.Limits.MaxCalls = 1 })
	a := newRawClient(t, stack.url).initialize("")
	leave := a.beginPost(waitCall)
	wiretest.Await(t, stack.session.started, "the tool")
	leave()
	const echo = `{"jsonrpc":"2.0","id":"e","method":"tools/call","params":{"name":"echo"}}`
	for body, want := range map[string]int{
		echo:                    http.StatusServiceUnavailable,
		wiretest.InitializeBody: http.StatusServiceUnavailable,
		`{"jsonrpc":"2.0","id":"p","method":"ping"}`:                                                              http.StatusOK,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"none"}}`:                      http.StatusAccepted,
		`{"jsonrpc":"2.0","id":"no question","result":{"action":"decline"}}`:                                      http.StatusAccepted,
		`{"jsonrpc":"2.0","id":"u","method":"tasks/cancel","params":{"taskId":"` + strings.Repeat("0", 8) + `"}}`: http.StatusOK,
	} {
		a.wantPost(body, want)
	}
	stack.session.proceed <- struct{}{}
	waitUntil(t, "the answer to a call after that", func() bool {
		status, _ := a.post(echo)
		return status == http.StatusOK
	})
}

// TestLegacyStreamsInAll: the GET streams of sessions count, and so do streams that are resumed.
func TestLegacyStreamsInAll(t *testing.T) {
	stack := newLegacyStack(t, false, func(c *config.Config) { c.Limits.MaxStreams = 1 })
	a, b := newRawClient(t, stack.url).initialize(""), newRawClient(t, stack.url).initialize("")
	open := openSSE(t, a, http.MethodGet, "", "")
	if open.resp.StatusCode != http.StatusOK {
		t.Fatalf("the first one: %d", open.resp.StatusCode)
	}
	for what, last := range map[string]string{"another": "", "a resumed one": "stream.1"} {
		if one := openSSE(t, b, http.MethodGet, "", last); one.resp.StatusCode != http.StatusServiceUnavailable || one.resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: %d %v", what, one.resp.StatusCode, one.resp.Header)
		}
	}
	open.close()
	waitUntil(t, "the next one", func() bool {
		one := openSSE(t, b, http.MethodGet, "", "")
		defer one.close()
		return one.resp.StatusCode == http.StatusOK
	})
}
