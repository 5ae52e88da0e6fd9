package upstream

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"taskgate/gateway/upstream/streamable"
	"taskgate/shim/shimtest/fake"
)

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// check notes an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// errorOf is the error alone.
func errorOf(_ any, err error) error { return err }

// pipes is a listener in memory, so that a server and an upstream client fit into a bubble of
// synctest, where hours pass at once.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// bubble runs a test with a server and an upstream client in fake time. Whatever goroutine is
// left when it ends fails it.
func bubble(t *testing.T, m fake.Mode, c Config, run func(t *testing.T, s *fake.Server, h *ServerClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := fake.NewHandler(t, m)
		l := newPipes()
		web := http.Server{Handler: s}
		go web.Serve(l)
		c.URL = "http://fake/mcp"
		h, err := New(c)
		must(t, err)
		baseOf(h).DialContext = l.dial
		run(t, s, h)
		if err := h.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
		s.Close()
		web.Close()
		synctest.Wait()
	})
}

// bubbleOf is bubble for one case of a test.
func bubbleOf(t *testing.T, name string, m fake.Mode, c Config, run func(t *testing.T, s *fake.Server, h *ServerClient)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, m, c, run) })
}

// baseOf performs the HTTP requests of a client.
func baseOf(h *ServerClient) *http.Transport {
	if h.wire.older != nil {
		return h.wire.older.HTTP.Base
	}
	return h.wire.via.(*streamable.Transport).Base
}
