// Package memconn gives a net.Pipe the buffer for writing that a socket has. Without it, a Redis in
// memory that answers the first command of a pipeline would wait forever for a client that is still
// writing the second.
package memconn

import (
	"net"
	"sync"

	"taskgate/internal/work"
)

// Conn is a pipe with a buffer for writing.
type Conn struct {
	net.Conn
	wake  chan struct{} // there is something to send
	ended chan struct{}
	end   func()

	mu  sync.Mutex
	out []byte
}

// New gives one end of a net.Pipe a buffer. Close ends the goroutine that writes it out.
func New(c net.Conn) *Conn {
	p := &Conn{Conn: c, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	p.end = sync.OnceFunc(func() { close(p.ended) })
	go p.send()
	return p
}

// Write puts b into the buffer. A caller waits for the answer before it writes more, so the buffer
// has at most one caller's commands.
func (p *Conn) Write(b []byte) (int, error) {
	if work.IsClosed(p.ended) {
		return 0, net.ErrClosed
	}
	p.mu.Lock()
	p.out = append(p.out, b...)
	p.mu.Unlock()
	work.Signal(p.wake)
	return len(b), nil
}

// send sends the buffer until the pipe is closed.
func (p *Conn) send() {
	for {
		select {
		case <-p.ended:
			return
		case <-p.wake:
		}
		p.mu.Lock()
		out := p.out
		p.out = nil
		p.mu.Unlock()
		if _, err := p.Conn.Write(out); err != nil {
			_ = p.Close()
		}
	}
}

// Close ends both directions.
func (p *Conn) Close() error {
	p.end()
	return p.Conn.Close()
}
