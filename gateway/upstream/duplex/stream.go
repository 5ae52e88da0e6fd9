package duplex

import (
	"context"
	"io"
	"slices"
	"sync"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
)

// maxQueue is how many bytes wait in a stream for its reader before progress is merged and log
// messages are dropped. A single message may be larger. Questions and the newest progress have as
// much again.
const maxQueue = 256 << 10

// stream has the messages of one request, or those outside of any request. Its server puts them in,
// and never waits; the upstream client reads it. mu guards the fields below it.
type stream struct {
	s      *server
	ctx    context.Context
	m      transport.Outgoing // the request without its Body, or what Listen was called with, in its session
	serial int                // newer streams have a larger one
	unsent bool               // the server has not got the request

	wake chan struct{} // a signal: the queue has something to read

	latest transport.Event // the reader's
	taken  int64           // bytes that the reader has taken room for

	mu      sync.Mutex
	queue   []event
	size    int   // bytes in the queue
	dropped int   // messages that did not fit
	err     error // the end of the stream, once the queue is empty
}

// eventSize is about how many bytes an event takes besides the text of its message.
const eventSize = 256

// event is a waiting message. token is that of its progress; "" for other messages.
type event struct {
	message jsonrpc.Message
	token   string
}

// countBytes is how many bytes it takes to keep an event.
func (e *event) countBytes() int { return len(e.message.Raw) + eventSize }

func newStream(ctx context.Context, s *server, m *transport.Outgoing) *stream {
	st := &stream{s: s, ctx: ctx, m: *m, wake: make(chan struct{}, 1)}
	st.m.Body, st.m.Params = nil, nil // they may be large
	return st
}

// putMessage adds a message. If the reader is slow, progress replaces the last one with its token,
// and other notifications are only counted. putMessage reports false for a question that does not
// fit, or whose reader has left. An answer always fits.
func (st *stream) putMessage(m jsonrpc.Message) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return m.Kind != jsonrpc.Request
	}
	e := event{message: m}
	if m.Method == mcp.NotifyProgress {
		token, _ := jsonrpc.Get(m.Params, mcp.MetaProgressToken)
		e.token = string(token)
	}
	size := st.size + e.countBytes()
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

// mergeProgress replaces the newest waiting progress with the same token. st.mu is held.
func (st *stream) mergeProgress(e event) bool {
	for i, other := range slices.Backward(st.queue) {
		if other.token == e.token {
			st.size += e.countBytes() - other.countBytes()
			st.queue[i] = e
			return true
		}
	}
	return false
}

// endStream sets how the stream ends after its messages; the first call counts.
func (st *stream) endStream(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.err != nil {
		return
	}
	st.err = err
	if st.dropped > 0 {
		st.s.t.cfg.Logger.Warn("messages of the server were dropped, since they were not read in time", "messages", st.dropped)
	}
	work.Signal(st.wake)
}

// putAnswer adds the last message.
func (st *stream) putAnswer(m jsonrpc.Message) {
	st.putMessage(m)
	st.endStream(io.EOF)
}

// Head has the session id of an initialize.
func (st *stream) Head() transport.Head {
	if st.m.Method == mcp.MethodInitialize {
		return transport.Head{Session: st.m.Session}
	}
	return transport.Head{}
}

// Next waits for a message. Its errors are io.EOF, the cause of the end of the request's context,
// the *shim.UpstreamError of a server that has ended, and that of a message for which there is no
// room.
func (st *stream) Next() *transport.Event {
	st.m.Hold.Give(st.taken) // the room of the message that was read last
	st.latest, st.taken = transport.Event{}, 0
	e := &st.latest
	for {
		m, err := st.takeMessage()
		if err != nil {
			e.Err = err
			return e
		}
		if m != nil {
			st.m.NoteHeard()
			room := max(0, int64(len(m.Raw))-budget.Free)
			if e.Err = st.m.TakeRoom(room); e.Err == nil {
				e.Message, st.taken = *m, room
			}
			return e
		}
		st.m.NoteWaiting()
		select {
		case <-st.wake:
		case <-st.ctx.Done():
			e.Err = context.Cause(st.ctx)
			return e
		}
	}
}

// takeMessage returns the next message; nil if it is still to come.
func (st *stream) takeMessage() (*jsonrpc.Message, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.queue) == 0 {
		return nil, st.err
	}
	e := st.queue[0]
	st.queue[0] = event{}
	st.queue, st.size = st.queue[1:], st.size-e.countBytes()
	return &e.message, nil
}

// awaitEnd waits until the stream ends, or the request's context, and returns the reason. It reads nothing.
func (st *stream) awaitEnd() error {
	for {
		st.mu.Lock()
		err := st.err
		st.mu.Unlock()
		if err != nil {
			return err
		}
		select {
		case <-st.wake:
		case <-st.ctx.Done():
			return context.Cause(st.ctx)
		}
	}
}

// Finish is Close: the answer is the last message.
func (st *stream) Finish() { st.Close() }

// Close says that the reader has left. A request that is still unanswered is over then.
func (st *stream) Close() {
	st.mu.Lock()
	open := st.err == nil
	if open {
		st.err = io.ErrClosedPipe
	}
	st.queue, st.size = nil, 0
	work.Signal(st.wake)
	st.mu.Unlock()
	if open {
		st.s.noteLeft(st)
	}
}
