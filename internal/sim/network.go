package sim

import (
	"cmp"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// window is how many bytes a connection holds that were sent and are yet to be read. A writer waits for more room.
const window = 64 << 10

// deadAfter is how long a connection lives on after its bytes have stopped to arrive, as keep-alives of TCP have it.
const deadAfter = time.Minute

// way is one direction between two hosts.
type way struct{ from, to string }

// Network carries bytes between hosts, which have names. It delays them by up to two milliseconds, and hands them over
// in pieces of any size.
type Network struct {
	mu        sync.Mutex
	rand      *rand.Rand
	listeners map[string]*listener
	conns     map[*conn]struct{}
	shut      map[way]int     // directions in which nothing arrives, and by how many faults
	down      map[string]bool // hosts that were killed
	slow      map[string]time.Duration
	ports     int
}

// NewNetwork makes a network whose delays come from a seed.
func NewNetwork(seed uint64) *Network {
	return &Network{
		rand: rand.New(rand.NewPCG(seed, 2)), listeners: map[string]*listener{}, conns: map[*conn]struct{}{},
		shut: map[way]int{}, down: map[string]bool{}, slow: map[string]time.Duration{},
	}
}

// listener takes the connections to a host.
type listener struct {
	queue chan net.Conn
	end   sync.Once
	ended chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.end.Do(func() { close(l.ended) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// Listen takes the connections to a host from now on.
func (n *Network) Listen(host string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &listener{queue: make(chan net.Conn, 1<<14), ended: make(chan struct{})}
	n.listeners[host] = l
	delete(n.down, host)
	return l
}

// Dial connects two hosts. Where nothing arrives it waits, as long as ctx lasts and for ten seconds at most.
func (n *Network) Dial(ctx context.Context, from, to string) (net.Conn, error) {
	n.mu.Lock()
	wait := n.latency(from, to)
	if n.shut[way{from, to}]+n.shut[way{to, from}] > 0 {
		wait = 10 * time.Second
	}
	n.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, dialError(context.Cause(ctx))
	case <-time.After(wait):
	}
	return n.Connect(from, to)
}

func dialError(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }

// Connect is Dial for a caller that holds a lock meanwhile: it fails where Dial would wait.
func (n *Network) Connect(from, to string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.listeners[to]
	switch {
	case n.shut[way{from, to}]+n.shut[way{to, from}] > 0:
		return nil, dialError(syscall.ETIMEDOUT)
	case n.down[from]:
		return nil, dialError(syscall.ENETUNREACH)
	case n.down[to], l == nil:
		return nil, dialError(syscall.ECONNREFUSED)
	}
	n.ports++
	there := &flow{way: way{from, to}, changed: make(chan struct{})}
	back := &flow{way: way{to, from}, changed: make(chan struct{})}
	a := &conn{n: n, in: back, out: there, port: n.ports, born: time.Now(), roomy: to == redisHost}
	b := &conn{n: n, in: there, out: back, port: n.ports, born: time.Now(), roomy: to == redisHost}
	select {
	case <-l.ended:
		return nil, dialError(syscall.ECONNREFUSED)
	case l.queue <- b:
		n.conns[a], n.conns[b] = struct{}{}, struct{}{}
		return a, nil
	default:
		return nil, dialError(syscall.ECONNREFUSED)
	}
}

// latency is how long the next bytes are on their way. n.mu is held.
func (n *Network) latency(from, to string) time.Duration {
	return time.Duration(n.rand.IntN(2000))*time.Microsecond + n.slow[from] + n.slow[to]
}

// Slow makes everything from and to a host later by this.
func (n *Network) Slow(host string, by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.slow[host] = by
}

// Kill ends a host. Nobody hears from it any more. Its peers learn of that by the end of their connections or, with
// silent, by the silence.
func (n *Network) Kill(host string, silent bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down[host] = true
	for c := range n.conns {
		switch {
		case c.out.from == host:
			n.sever(c, syscall.ECONNRESET)
		case c.out.to == host && silent:
			n.severLater(c)
		case c.out.to == host:
			n.sever(c, syscall.ECONNRESET)
		}
	}
}

// Revive has a host that was killed take connections again.
func (n *Network) Revive(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.down, host)
}

// Close ends all hosts.
func (n *Network) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		n.sever(c, net.ErrClosed)
	}
	for host, l := range n.listeners {
		n.down[host] = true
		_ = l.Close()
	}
}

// Cut ends the connections between two hosts; "" is any.
func (n *Network) Cut(one, other string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.out.from == one && (other == "" || c.out.to == other) || c.out.to == one && (other == "" || c.out.from == other) {
			n.sever(c, syscall.ECONNRESET)
		}
	}
}

// Shut has nothing arrive from one host at another, until open is called: then what was sent meanwhile arrives, unless
// that took too long.
func (n *Network) Shut(from, to string) (open func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := way{from, to}
	n.shut[w]++
	for c := range n.conns {
		if c.out.way == w || c.in.way == w {
			n.severLater(c)
		}
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.shut[w]--
		for c := range n.conns {
			if c.in.way == w {
				c.in.wake()
			}
		}
	}
}

// severLater ends a connection after deadAfter if nothing arrives by then. n.mu is held.
func (n *Network) severLater(c *conn) {
	time.AfterFunc(deadAfter, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.isShut(c.in.way) || n.isShut(c.out.way) {
			n.sever(c, syscall.ETIMEDOUT)
		}
	})
}

// isShut reports whether nothing arrives. n.mu is held.
func (n *Network) isShut(w way) bool { return n.shut[w] > 0 || n.down[w.from] || n.down[w.to] }

// sever ends one end of a connection. n.mu is held.
func (n *Network) sever(c *conn, why error) {
	c.broken = cmp.Or(c.broken, why)
	c.in.wake()
	c.out.wake()
	delete(n.conns, c)
}

// Count returns how many ends of connections are open at a host.
func (n *Network) Count(host string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.out.from == host {
			count++
		}
	}
	return count
}

// flow is what is on its way in one direction. Network.mu guards it.
type flow struct {
	way
	parts   []part
	size    int
	closed  bool          // nothing more is sent
	deaf    bool          // nothing more is read
	changed chan struct{} // closed at each change
}

// part is what one write sent.
type part struct {
	at   time.Time // when it arrives
	data []byte
}

func (f *flow) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// conn is one end of a connection.
type conn struct {
	n       *Network
	in, out *flow
	port    int
	born    time.Time

	// Network.mu guards what follows.
	broken                      error
	gone                        bool // closed here
	roomy                       bool // to the store: a write never waits, and the handshake, under a lock, takes no time
	readDeadline, writeDeadline time.Time
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	return c.await(c.in, func() time.Time { return c.readDeadline }, func(now time.Time) (int, time.Time, error) {
		switch f := c.in; {
		case len(b) == 0:
			return 0, time.Time{}, nil
		case c.n.isShut(f.way):
		case len(f.parts) == 0 && f.closed:
			return 0, time.Time{}, io.EOF
		case len(f.parts) > 0 && f.parts[0].at.After(now):
			return 0, f.parts[0].at, errNotYet
		case len(f.parts) > 0:
			first := &f.parts[0]
			n := copy(b, first.data)
			if n > 1 && c.n.rand.IntN(8) == 0 {
				n = 1 + c.n.rand.IntN(n)
			}
			if first.data = first.data[n:]; len(first.data) == 0 {
				f.parts = f.parts[1:]
			}
			f.size -= n
			f.wake()
			return n, time.Time{}, nil
		}
		return 0, time.Time{}, errNotYet
	})
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (n int, err error) {
	for err == nil && n < len(b) {
		var some int
		some, err = c.await(c.out, func() time.Time { return c.writeDeadline }, func(now time.Time) (int, time.Time, error) {
			f := c.out
			room := window - f.size
			if c.roomy {
				room = len(b)
			}
			switch {
			case f.deaf:
				return 0, time.Time{}, syscall.EPIPE
			case room <= 0:
				return 0, time.Time{}, errNotYet
			}
			data := b[n:min(len(b), n+room)]
			at := now
			if !c.roomy || now.After(c.born) {
				at = now.Add(c.n.latency(f.from, f.to))
			}
			if len(f.parts) > 0 && f.parts[len(f.parts)-1].at.After(at) {
				at = f.parts[len(f.parts)-1].at
			}
			f.parts = append(f.parts, part{at, append([]byte(nil), data...)})
			f.size += len(data)
			f.wake()
			return len(data), time.Time{}, nil
		})
		n += some
	}
	return n, err
}

// errNotYet says that an operation has to wait.
var errNotYet = io.ErrNoProgress

// await tries an operation until it does something or fails. The operation is called under Network.mu, and may say
// when to try again.
func (c *conn) await(f *flow, deadline func() time.Time, try func(now time.Time) (int, time.Time, error)) (int, error) {
	for {
		c.n.mu.Lock()
		now, until, changed := time.Now(), deadline(), f.changed
		var n int
		var again time.Time
		err := c.broken
		switch {
		case c.gone:
			err = net.ErrClosed
		case err == nil && !until.IsZero() && !now.Before(until):
			err = os.ErrDeadlineExceeded
		case err == nil:
			n, again, err = try(now)
		}
		c.n.mu.Unlock()
		switch {
		case err == io.EOF:
			return 0, io.EOF
		case err != nil && err != errNotYet:
			return 0, &net.OpError{Op: "io", Net: "tcp", Err: err}
		case err == nil:
			return n, nil
		}
		if again.IsZero() || !until.IsZero() && until.Before(again) {
			again = until
		}
		var timer <-chan time.Time
		if !again.IsZero() {
			timer = time.After(again.Sub(now))
		}
		select {
		case <-changed:
		case <-timer:
		}
	}
}

// Close implements net.Conn. The peer reads what was sent, and then the end.
func (c *conn) Close() error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	if c.gone {
		return net.ErrClosed
	}
	c.gone, c.in.deaf = true, true
	c.out.closed = true
	c.in.wake()
	c.out.wake()
	delete(c.n.conns, c)
	return nil
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1024 + c.port%60000}
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.readDeadline = t
	c.in.wake()
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	c.writeDeadline = t
	c.out.wake()
	return nil
}
