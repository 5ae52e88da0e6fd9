package duplex

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
	"taskgate/shim"
)

// maxQueue is how many bytes wait in a stream for its reader. One message may be larger.
const maxQueue = 256 << 10

// stream is the body of a response: an event stream of the messages that belong to one
// request, or of those that belong to none. Its server puts them in; the upstream client reads
// it. mu guards what follows it.
type stream struct {
	s       *server
	ctx     context.Context
	id      jsonrpc.ID // of the request; zero for the stream of a GET
	method  string
	session string // "" for a modern server
	serial  int    // newer streams have a larger one

	wake chan struct{} // a signal: there is something to read
	room chan struct{} // a signal: something was read
	over chan struct{} // closed when nothing more is put in

	mu     sync.Mutex
	queue  [][]byte
	size   int
	err    error // the end of the stream, once the queue is empty
	closed bool
}

func newStream(ctx context.Context, s *server, id jsonrpc.ID, method, session string) *stream {
	return &stream{
		s: s, ctx: ctx, id: id, method: method, session: session,
		wake: make(chan struct{}, 1), room: make(chan struct{}, 1), over: make(chan struct{}),
	}
}

// The parts of an event around a message.
var (
	eventHead = []byte("data: ")
	eventTail = []byte("\n\n")
)

// put adds a message, and waits for its reader where too many wait already. A reader that
// does not read holds up the whole server: its stream is ended.
func (st *stream) put(message []byte) {
	var late *time.Timer
	for !st.add(message) {
		if late == nil {
			late = time.NewTimer(st.s.t.cfg.ReadTimeout)
			defer late.Stop()
		}
		select {
		case <-st.room:
		case <-st.over:
			return
		case <-late.C:
			st.end(&shim.UpstreamError{Kind: KindClosed, Message: fmt.Sprintf("what the server said was not read for %s", st.s.t.cfg.ReadTimeout)})
			return
		}
	}
}

// add adds a message if there is room. It reports true for a stream that is over.
func (st *stream) add(message []byte) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.closed || st.err != nil:
		return true
	case st.size > 0 && st.size+len(message) > maxQueue:
		return false
	}
	st.queue = append(st.queue, eventHead, message, eventTail)
	st.size += len(message)
	work.Signal(st.wake)
	return true
}

// end says how the stream ends when all of it has been read; the first one counts.
func (st *stream) end(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return
	}
	st.err = err
	if !st.closed {
		close(st.over)
	}
	work.Signal(st.wake)
}

// answer puts the last message in.
func (st *stream) answer(message []byte) {
	st.put(message)
	st.end(io.EOF)
}

// Read waits for something to read. It returns the cause of the end of the request's context,
// and the *shim.UpstreamError of a server that has ended.
func (st *stream) Read(p []byte) (int, error) {
	for {
		n, err := st.take(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		select {
		case <-st.wake:
		case <-st.ctx.Done():
			return 0, context.Cause(st.ctx)
		}
	}
}

// take reads what is there.
func (st *stream) take(p []byte) (n int, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return 0, io.ErrClosedPipe
	}
	for n < len(p) && len(st.queue) > 0 {
		some := copy(p[n:], st.queue[0])
		n += some
		if st.queue[0] = st.queue[0][some:]; len(st.queue[0]) == 0 {
			st.queue[0] = nil
			st.queue = st.queue[1:]
		}
	}
	if len(st.queue) == 0 {
		st.queue, st.size = nil, 0
	}
	if n > 0 {
		st.size = max(st.size-n, 0)
		work.Signal(st.room)
		return n, nil
	}
	return 0, st.err
}

// Close says that nobody reads any more. A request without an answer is over then.
func (st *stream) Close() error {
	st.mu.Lock()
	was := st.closed
	st.closed = true
	st.queue, st.size = nil, 0
	if !was && st.err == nil {
		close(st.over)
	}
	work.Signal(st.wake)
	st.mu.Unlock()
	if !was {
		st.s.left(st)
	}
	return nil
}

// failed is the error of a stream that has ended with one.
func (st *stream) failed() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err
}
