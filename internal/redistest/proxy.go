package redistest

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Fault is what goes wrong with one command.
type Fault int

// The faults.
const (
	// DropReply forwards the command, lets Redis execute it, and cuts the
	// connection instead of passing the reply on.
	DropReply Fault = iota + 1
	// CutBefore cuts the connection instead of forwarding the command.
	CutBefore
	// Hold neither forwards the command nor cuts the connection, until Release
	// forwards it: it is executed late, when its sender has long given up.
	Hold
)

// Proxy is the network in front of a Redis.
type Proxy struct {
	// Addr is where to connect.
	Addr string

	listener net.Listener
	done     sync.WaitGroup

	mu      sync.Mutex
	target  string
	links   map[*link]bool
	fault   Fault  // of the next command
	match   []byte // that contains this
	after   int    // how many bytes go through before it
	hit     int    // how many commands met their fault
	refuse  bool
	words   string        // the answer to each command, in place of Redis's own; "" for none
	said    *bytes.Buffer // to Redis; nil where that is not recorded
	latency time.Duration // of replies to commands
	slow    []byte        // that contain this
	release chan struct{} // closed to forward what is held
	frozen  bool          // nothing is forwarded
	thaw    *sync.Cond    // of mu
}

// link is one connection through the proxy. Its fields belong to Proxy.mu.
type link struct {
	client, server net.Conn
	late           *late // the server, where what it says comes late; nil else
	subscriber     bool  // it has sent a SUBSCRIBE
	limited        bool  // of what Redis says, left bytes go through before it is cut
	left           int
	deaf           bool // what Redis says is swallowed
}

// NewProxy starts a proxy in front of an address. It ends with the test.
func NewProxy(t TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("proxy: %v", err)
	}
	return NewProxyOn(t, l, target)
}

// NewProxyOn is NewProxy for those who come to this listener.
func NewProxyOn(t TB, l net.Listener, target string) *Proxy {
	t.Helper()
	p := &Proxy{
		Addr: l.Addr().String(), target: target, listener: l, links: map[*link]bool{}, release: make(chan struct{}),
	}
	p.thaw = sync.NewCond(&p.mu)
	p.done.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.Refuse(true)
		p.Release()
		p.Freeze(false)
		p.Cut()
		p.done.Wait()
	})
	return p
}

// URL is the store URL of the Redis behind the proxy.
func (p *Proxy) URL() string { return "redis://" + p.Addr }

// Next has a fault befall the next command that contains a text, in upper or lower
// case, such as "evalsha".
func (p *Proxy) Next(f Fault, text string) { p.NextAfter(f, text, 0) }

// NextAfter is Next for a connection that is cut inside a message: CutBefore then
// forwards the first n bytes of the command, and DropReply those of the reply.
func (p *Proxy) NextAfter(f Fault, text string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault, p.match, p.after = f, []byte(strings.ToLower(text)), n
}

// CutEvents lets subscribers hear n bytes more, and then cuts their connections.
func (p *Proxy) CutEvents(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.subscriber {
			l.limited, l.left = true, n
		}
	}
}

// Latency has the reply to each command that contains a text, in lower case, come so much
// later, on connections that are made from now on. Replies on one connection keep their
// order, and do not wait for each other; events come at once.
func (p *Proxy) Latency(text string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency, p.slow = d, []byte(text)
}

// Record keeps all that is said to Redis from now on.
func (p *Proxy) Record() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = &bytes.Buffer{}
}

// Said is how often a text was said to Redis since Record.
func (p *Proxy) Said(text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Count(p.said.Bytes(), []byte(text))
}

// Hit says how many commands met their fault.
func (p *Proxy) Hit() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hit
}

// Release forwards what is held.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.release)
	p.release = make(chan struct{})
}

// Freeze has nothing forwarded, in either direction, over connections that stay up and new
// ones that open; or lets everything go on, late.
func (p *Proxy) Freeze(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = on
	p.thaw.Broadcast()
}

// thawed waits until the proxy is not frozen. p.mu is held.
func (p *Proxy) thawed() {
	for p.frozen {
		p.thaw.Wait()
	}
}

// Refuse has new connections be refused, or no longer.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// Point leads to another address from now on, or nowhere if that is "", and cuts all connections.
func (p *Proxy) Point(target string) {
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
	p.Cut()
}

// Words has the proxy answer each command itself, with this text, until it is "". Connections are cut at the
// change: answers would be mixed up.
func (p *Proxy) Words(text string) {
	p.mu.Lock()
	p.words = text
	p.mu.Unlock()
	p.Cut()
}

// Cut cuts all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Deafen lets subscribers hear nothing more, over connections that stay up.
func (p *Proxy) Deafen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.deaf = l.subscriber
	}
}

func (l *link) cut() {
	l.client.Close()
	l.server.Close()
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		s, err := net.Dial("tcp", target)
		p.mu.Lock()
		if err != nil || p.refuse || target != p.target {
			c.Close()
			if s != nil {
				s.Close()
			}
			p.mu.Unlock()
			continue
		}
		l := &link{client: c, server: s}
		if p.latency > 0 {
			l.late = newLate(s, p.latency)
			l.server = l.late
		}
		p.links[l] = true
		p.mu.Unlock()
		p.done.Go(func() { p.up(l) })
		p.done.Go(func() { p.down(l) })
	}
}

// up carries commands.
func (p *Proxy) up(l *link) {
	defer p.forget(l)
	for buf := make([]byte, 64<<10); ; {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		if words := p.ownWords(); words != "" {
			if _, err := io.WriteString(l.client, words); err != nil {
				return
			}
			continue
		}
		pass, on := p.meet(l, buf[:n])
		if _, err := l.server.Write(buf[:pass]); err != nil || !on {
			return
		}
	}
}

func (p *Proxy) ownWords() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.words
}

// meet has a command meet its fault, and says how many bytes of it to forward, and
// whether the connection goes on then.
func (p *Proxy) meet(l *link, command []byte) (pass int, on bool) {
	lower := bytes.ToLower(command)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thawed()
	if p.said != nil {
		p.said.Write(command)
	}
	l.subscriber = l.subscriber || bytes.Contains(lower, []byte("\r\nsubscribe\r\n"))
	if l.late != nil {
		l.late.prompt.Store(l.subscriber || !bytes.Contains(lower, p.slow))
	}
	if p.fault == 0 || !bytes.Contains(lower, p.match) {
		return len(command), true
	}
	fault, release := p.fault, p.release
	p.fault = 0
	p.hit++
	switch fault {
	case CutBefore:
		return min(p.after, len(command)), false
	case DropReply:
		l.limited, l.left = true, p.after
	case Hold:
		p.mu.Unlock()
		<-release
		p.mu.Lock()
	}
	return len(command), true
}

// down carries replies.
func (p *Proxy) down(l *link) {
	defer p.forget(l)
	for buf := make([]byte, 64<<10); ; {
		n, err := l.server.Read(buf)
		if err != nil {
			return
		}
		pass, deaf := p.hear(l, n)
		if deaf {
			continue
		}
		if _, err := l.client.Write(buf[:pass]); err != nil || pass < n {
			return
		}
	}
}

// hear says how many of n bytes of a reply to pass on; fewer are the last.
func (p *Proxy) hear(l *link, n int) (pass int, deaf bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thawed()
	if l.limited {
		pass = min(n, l.left)
		l.left -= pass
		return pass, l.deaf
	}
	return n, l.deaf
}

// forget ends a link. What was held is still to be executed, so a client that has
// gone does not end it.
func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.cut()
	delete(p.links, l)
}
