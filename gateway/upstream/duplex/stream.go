package duplex

import (
	"context"
	"io"
	"slices"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
)

// maxQueue is how many bytes wait in a stream for its reader before progress is merged and log
// messages are dropped. One message may be larger. Questions and the newest progress have as
// much again.
const maxQueue = 256 << 10

// stream is the body of a response: an event stream of the messages that belong to one
// request, or of those that belong to none. Its server puts them in, and never waits; the
// upstream client reads it. mu guards what follows it.
type stream struct {
	s      *server
	ctx    context.Context
	id     jsonrpc.ID // of the request; zero for the stream of a GET
	method string
	// session is the one that the request belongs to; "" for none.
	session string
	serial  int // newer streams have a larger one

	wake chan struct{} // a signal: there is something to read
	over chan struct{} // closed when nothing more is put in

	mu      sync.Mutex
	reading [][]byte // what is left of the event that is being read
	queue   []event
	size    int   // bytes in the queue
	dropped int   // messages that did not fit
	err     error // the end of the stream, once the queue is empty
	closed  bool
}

// event is a message that waits. token is that of its progress; "" for other messages.
type event struct {
	message []byte
	token   string
}

func newStream(ctx context.Context, s *server, session string, id jsonrpc.ID, method string) *stream {
	return &stream{s: s, ctx: ctx, session: session, id: id, method: method, wake: make(chan struct{}, 1), over: make(chan struct{})}
}

// The parts of an event around a message.
var (
	eventHead = []byte("data: ")
	eventTail = []byte("\n\n")
)

// putMessage adds a message. Of a reader that is slow the queue is bounded: progress takes the place
// of what was said before under its token, and other notifications are counted instead. It
// reports false for a question that does not fit, or that nobody reads any more. An answer
// always fits.
func (st *stream) putMessage(m jsonrpc.Message) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed || st.err != nil {
		return m.Kind != jsonrpc.Request
	}
	e := event{message: m.Raw}
	if m.Method == mcp.NotifyProgress {
		token, _ := jsonrpc.Get(m.Params, mcp.MetaProgressToken)
		e.token = string(token)
	}
	size := st.size + len(e.message)
	switch full := st.size > 0 && size > maxQueue; {
	case !full || m.Kind == jsonrpc.Result || m.Kind == jsonrpc.ErrorResponse:
	case e.token != "" && st.mergeProgress(e):
		return true
	case (e.token != "" || m.Kind == jsonrpc.Request) && size <= 2*maxQueue:
	case m.Kind == jsonrpc.Request:
		return false
	default:
		st.dropped++
		return true
	}
	st.queue = append(st.queue, e)
	st.size = size
	work.Signal(st.wake)
	return true
}

// mergeProgress puts progress in the place of the newest that waits under its token. st.mu is held.
func (st *stream) mergeProgress(e event) bool {
	for i, other := range slices.Backward(st.queue) {
		if other.token == e.token {
			st.size += len(e.message) - len(other.message)
			st.queue[i] = e
			return true
		}
	}
	return false
}

// endStream says how the stream ends when all of it has been read; the first one counts.
func (st *stream) endStream(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return
	}
	st.err = err
	if !st.closed {
		close(st.over)
	}
	if st.dropped > 0 {
		st.s.t.cfg.Logger.Warn("messages of the server were dropped, since they were not read in time", "messages", st.dropped)
	}
	work.Signal(st.wake)
}

// putAnswer puts the last message in.
func (st *stream) putAnswer(message []byte) {
	st.putMessage(jsonrpc.Message{Kind: jsonrpc.Result, Raw: message})
	st.endStream(io.EOF)
}

// Read waits for something to read. It returns the cause of the end of the request's context,
// and the *shim.UpstreamError of a server that has ended.
func (st *stream) Read(p []byte) (int, error) {
	for {
		n, err := st.takeMessages(p)
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

// takeMessages reads what is there.
func (st *stream) takeMessages(p []byte) (n int, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return 0, io.ErrClosedPipe
	}
	for n < len(p) && (len(st.reading) > 0 || len(st.queue) > 0) {
		if len(st.reading) == 0 {
			message := st.queue[0].message
			st.reading = [][]byte{eventHead, message, eventTail}
			st.queue[0] = event{}
			st.queue, st.size = st.queue[1:], st.size-len(message)
		}
		some := copy(p[n:], st.reading[0])
		n += some
		if st.reading[0] = st.reading[0][some:]; len(st.reading[0]) == 0 {
			st.reading = st.reading[1:]
		}
	}
	if n > 0 {
		return n, nil
	}
	return 0, st.err
}

// Close says that nobody reads any more. A request without an answer is over then.
func (st *stream) Close() error {
	st.mu.Lock()
	was := st.closed
	st.closed = true
	st.reading, st.queue, st.size = nil, nil, 0
	if !was && st.err == nil {
		close(st.over)
	}
	work.Signal(st.wake)
	st.mu.Unlock()
	if !was {
		st.s.noteLeft(st)
	}
	return nil
}

// streamError is the error of a stream that has ended with one.
func (st *stream) streamError() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err
}
