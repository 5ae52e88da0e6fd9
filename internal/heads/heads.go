// Package heads bounds what the heads of HTTP/1.1 requests cost a server before it knows who sends them: the bytes
// and fields of each one, and the bytes of all that are unfinished.
//
// net/http makes entries of a map from the fields as they come, which take twenty times the bytes of short ones. A
// [Guard] therefore keeps the bytes of a head on its connection until the head is complete, and only then hands them
// on. The bytes of a body pass untouched.
//
//	server reads ── head: kept until its empty line ──▶ handed on ──▶ handler says how long the body is
//	                  ▲                                                   │
//	                  └────────── the next head begins behind it ◀── body: passes
package heads

import (
	"container/list"
	"context"
	"crypto/tls"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
)

// Limits are those of heads.
type Limits struct {
	Bytes  int   // of one head, the request line included
	Fields int   // of one head
	All    int64 // bytes of all unfinished heads; beyond that the connection ends that is the oldest with one
}

// exceeds reports whether a head is too large, as far as it was looked at.
func (l Limits) exceeds(s scanner) bool { return s.bytes > l.Bytes || s.fields > l.Fields }

// Guard keeps the limits for the connections of a server. It is safe for concurrent use.
type Guard struct {
	limits  Limits
	refused func()

	mu         sync.Mutex
	held       int64     // bytes of unfinished heads
	unfinished list.List // of *conn, the oldest at the front
}

// New returns a Guard. It calls refused for each head that is too large, and for each that ends unfinished for the
// others; refused may be nil.
func New(l Limits, refused func()) *Guard {
	if refused == nil {
		refused = func() {}
	}
	return &Guard{limits: l, refused: refused}
}

// Use puts the guard into a server that is not serving yet.
func (g *Guard) Use(s *http.Server) {
	state, next := s.ConnState, s.Handler
	s.MaxHeaderBytes = g.limits.Bytes
	s.ConnState = func(c net.Conn, now http.ConnState) {
		if now == http.StateIdle {
			if c := guarded(c); c != nil {
				c.body = 0
			}
		}
		if state != nil {
			state(c, now)
		}
	}
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, key{}, guarded(c))
	}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _ := r.Context().Value(key{}).(*conn); c != nil && !c.begin(r) {
			g.refused()
			w.Header().Set("Connection", "close")
			http.Error(w, http.StatusText(http.StatusRequestHeaderFieldsTooLarge), http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// key is that of the connection in the context of a request.
type key struct{}

// Listener guards the connections of a listener. The server that takes them needs Use.
func (g *Guard) Listener(l net.Listener) net.Listener { return &listener{l, g} }

type listener struct {
	net.Listener
	guard *Guard
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	kept := &conn{Conn: c, guard: l.guard}
	if secure, ok := c.(*tls.Conn); ok {
		return &tlsConn{conn: kept, secure: secure}, nil
	}
	return kept, nil
}

// guarded is the guard's part of a connection; nil for that of another listener.
func guarded(c net.Conn) *conn {
	switch c := c.(type) {
	case *conn:
		return c
	case *tlsConn:
		return c.conn
	}
	return nil
}

// begin tells the connection about the request whose head it has handed on. It reports false for a head that was
// counted in part only, and has too many fields.
func (c *conn) begin(r *http.Request) bool {
	if c.loose && countFields(r.Header) > c.guard.limits.Fields {
		return false
	}
	switch {
	case r.ContentLength > 0: // without a body the server may be reading already
		c.body = r.ContentLength
	case r.ContentLength < 0:
		c.body, c.loose = math.MaxInt64, true
		r.Body = &withoutTrailer{r.Body, r}
	}
	return true
}

func countFields(h http.Header) (n int) {
	for _, values := range h {
		n += len(values)
	}
	return n
}

// withoutTrailer is a chunked body. The fields behind it have no reader.
type withoutTrailer struct {
	io.ReadCloser
	r *http.Request
}

func (b *withoutTrailer) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.r.Trailer = nil
	}
	return n, err
}

// hold counts n bytes for a connection with an unfinished head, in place of those before; 0 for a finished one. It
// ends the oldest connections if all have too many.
func (g *Guard) hold(c *conn, n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n > 0 && c.place == nil {
		c.place = g.unfinished.PushBack(c)
	}
	g.held += n - c.held
	if c.held = n; n == 0 && c.place != nil {
		g.unfinished.Remove(c.place)
		c.place = nil
	}
	for g.held > g.limits.All {
		oldest := g.unfinished.Front().Value.(*conn)
		g.unfinished.Remove(oldest.place)
		g.held -= oldest.held
		oldest.place, oldest.held = nil, 0
		g.refused()
		_ = oldest.Conn.Close() // its reader ends
	}
}
