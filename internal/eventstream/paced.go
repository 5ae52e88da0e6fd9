package eventstream

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"
)

// Chunk is how many bytes a peer has to take, or send, within one timeout. With one timeout for a whole
// message, a slow peer would be cut off in a large message, and one that has stopped reading would be
// noticed late.
const Chunk = 64 << 10

// Paced is a response to a client that may read slowly, as long as it reads: each Chunk has a timeout
// of its own. It is not safe for concurrent use.
type Paced struct {
	http.ResponseWriter
	ctl     *http.ResponseController
	timeout time.Duration
	room    int // bytes that may still be written under the present deadline

	begun  atomic.Int64 // when the chunk under way was, in ns; 0 between writes
	broken atomic.Bool
}

// Pace returns w with a timeout per Chunk. A paced response stays as it is.
func Pace(w http.ResponseWriter, timeout time.Duration) *Paced {
	if p, ok := w.(*Paced); ok {
		return p
	}
	return &Paced{ResponseWriter: w, ctl: http.NewResponseController(w), timeout: timeout, room: Chunk}
}

// Begin starts the deadline of the next chunk. Before the first Begin there is no deadline. A response
// writer that lacks deadlines (a recorder in a test) is left as it is.
func (p *Paced) Begin() error {
	p.room = Chunk
	now := time.Now()
	p.begun.Store(now.UnixNano())
	return p.deadline(now.Add(p.timeout))
}

// longAgo is a deadline that fails the write under way.
var longAgo = time.Unix(1, 0)

// Break fails the write under way, and all later ones. It may be called while another goroutine writes.
func (p *Paced) Break() {
	p.broken.Store(true)
	_ = p.ctl.SetWriteDeadline(longAgo) // a response writer that lacks deadlines writes on
}

// Blocked returns how long the chunk under way has been written; 0 between writes. It may be called
// while another goroutine writes.
func (p *Paced) Blocked() time.Duration {
	begun := p.begun.Load()
	if begun == 0 {
		return 0
	}
	return time.Since(time.Unix(0, begun))
}

// End removes the deadline.
func (p *Paced) End() error { return p.deadline(time.Time{}) }

func (p *Paced) deadline(t time.Time) error {
	err := p.ctl.SetWriteDeadline(t)
	if p.broken.Load() {
		p.Break()
	}
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

// Write writes chunk by chunk, each under a deadline of its own.
func (p *Paced) Write(b []byte) (n int, err error) {
	for {
		if p.room <= 0 {
			if err := p.Begin(); err != nil {
				return n, err
			}
		}
		m, err := p.ResponseWriter.Write(b[n:min(len(b), n+p.room)])
		n, p.room = n+m, p.room-m
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

// Flush sends what is buffered, under the present deadline.
func (p *Paced) Flush() error { return p.ctl.Flush() }

// Unwrap serves http.ResponseController.
func (p *Paced) Unwrap() http.ResponseWriter { return p.ResponseWriter }
