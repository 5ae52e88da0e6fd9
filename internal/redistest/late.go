package redistest

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// late is a connection on which everything arrives later, while it is not prompt.
type late struct {
	net.Conn
	by        time.Duration
	prompt    atomic.Bool
	once      sync.Once
	done      chan struct{} // closed with the connection
	receiving sync.WaitGroup
	came      chan arrival // in order; closed after the last one
	rest      arrival      // what has been received and not been read yet
}

// arrival is what one read has brought, and when it may be read.
type arrival struct {
	due  time.Time
	data []byte
	err  error
}

// newLate reads from a connection until it is closed.
func newLate(c net.Conn, by time.Duration) *late {
	l := &late{Conn: c, by: by, done: make(chan struct{}), came: make(chan arrival, 4096)}
	l.receiving.Go(l.receive)
	return l
}

// receive ends when the connection does.
func (l *late) receive() {
	defer close(l.came)
	for {
		buf := make([]byte, 16<<10)
		n, err := l.Conn.Read(buf)
		due := time.Now()
		if !l.prompt.Load() {
			due = due.Add(l.by)
		}
		select {
		case l.came <- arrival{due, buf[:n], err}:
		case <-l.done:
			return
		}
		if err != nil {
			return
		}
	}
}

// Read waits until what comes next is due.
func (l *late) Read(p []byte) (int, error) {
	for len(l.rest.data) == 0 {
		if l.rest.err != nil {
			return 0, l.rest.err
		}
		a, ok := <-l.came
		if !ok {
			return 0, net.ErrClosed
		}
		timer := time.NewTimer(time.Until(a.due))
		select {
		case <-timer.C:
			l.rest = a
		case <-l.done:
			timer.Stop()
			return 0, net.ErrClosed
		}
	}
	n := copy(p, l.rest.data)
	l.rest.data = l.rest.data[n:]
	return n, nil
}

// Close drops what has not been read.
func (l *late) Close() error {
	l.once.Do(func() { close(l.done) })
	err := l.Conn.Close()
	l.receiving.Wait()
	return err
}
