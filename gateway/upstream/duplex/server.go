package duplex

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// server is one server that runs: who uses it, and what it was asked. The Transport owns it
// and waits for its end. mu guards what follows it; it is never held while t.mu is taken.
type server struct {
	t       *Transport
	link    Link
	key     serverKey
	own     bool          // it is that of one session
	private bool          // it is that of one session or principal
	probe   bool          // its first message is server/discover, of which it may die
	replies chan struct{} // places for those who answer the server in the gateway's name

	mu       sync.Mutex
	over     bool               // it takes no more requests
	served   bool               // it has said something
	proven   bool               // it has answered its first server/discover as a modern one
	serial   int                // of the newest stream
	asked    map[string]*stream // requests in flight, by the key of their id
	gets     map[string]*stream // of GET requests, by session
	sessions map[string]bool    // legacy
	hello    []byte             // the result of the handshake
	greeting *stream            // the handshake in flight
	waiting  []*stream          // further handshakes, which get the same answer
	told     bool               // notifications/initialized was sent
	idle     *time.Timer        // ends it while nobody uses it; nil for never
	since    time.Time          // nobody uses it since then
}

// add takes note of a request in flight.
func (s *server) add(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.open(st)
	s.asked[st.id.Key()] = st
	return true
}

// open takes note that a stream is the newest one. s.mu is held.
func (s *server) open(st *stream) {
	s.serial++
	st.serial = s.serial
	s.busy()
}

// busy stops the timer of an idle server. s.mu is held.
func (s *server) busy() {
	if s.idle != nil {
		s.idle.Stop()
	}
}

// rest starts the timer of a server that nobody uses. s.mu is held.
func (s *server) rest() {
	if len(s.asked)+len(s.gets) > 0 || s.over {
		return
	}
	s.since = time.Now()
	switch d := s.t.cfg.Idle; {
	case d <= 0:
	case s.idle == nil:
		s.idle = time.AfterFunc(d, s.expire)
	default:
		s.idle.Reset(d)
	}
}

// unused reports since when nobody has used the server.
func (s *server) unused() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, len(s.asked)+len(s.gets) == 0 && !s.over
}

// expire ends a server that is idle.
func (s *server) expire() {
	if s.retire() {
		s.t.remove(s)
		s.link.Stop()
	}
}

// retire has an unused server take no more requests. It reports false for one that is used.
func (s *server) retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || len(s.asked)+len(s.gets) > 0 {
		return false
	}
	s.over = true
	s.busy()
	return true
}

// quit ends the server in order. It takes no more requests; those in flight fail.
func (s *server) quit() {
	s.fail(&Ending{Kind: KindSession, How: "was ended by the gateway"})
	s.link.Stop()
}

// fail ends the streams of a server that is over from now on.
func (s *server) fail(e *Ending) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	s.over = true
	s.busy()
	asked, gets := s.asked, s.gets
	s.asked, s.gets, s.waiting, s.greeting = nil, nil, nil, nil
	why := s.failure(e)
	silent := s.probe && !s.proven
	s.mu.Unlock()
	s.t.remove(s)
	for _, st := range gets {
		st.end(why)
	}
	for _, st := range asked {
		if silent && st.method == mcp.MethodDiscover {
			st.answer(unknownMethod(st.id))
			continue
		}
		st.end(why)
	}
}

// unknownMethod is the answer in the name of a server that knows no server/discover and did
// not say so (protocol.md 2.10).
func unknownMethod(id jsonrpc.ID) []byte {
	return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: mcp.CodeMethodNotFound, Message: "the server has not answered"})
}

// failure is the error of a request in flight. What a server has said may be about other
// callers: it is shown where there are none. s.mu is held.
func (s *server) failure(e *Ending) *shim.UpstreamError {
	ue := &shim.UpstreamError{Kind: e.Kind, Message: s.t.cfg.What + " " + e.How, Err: e.Err}
	if text := e.shown(); text != "" {
		if s.private || !s.served {
			ue.Message += ": " + text
		} else {
			ue.Err = errors.Join(e.Err, errors.New(text))
		}
	}
	return ue
}

// ask sends a request. The stream has what belongs to it, and ends with the answer. ErrOver
// says that nothing was sent.
func (s *server) ask(ctx context.Context, st *stream, m Message) error {
	if !s.add(st) {
		return ErrOver
	}
	return s.write(ctx, st, m)
}

// write sends a request that add has taken note of.
func (s *server) write(ctx context.Context, st *stream, m Message) error {
	m.Heard = st.wake // the reader looks before it waits for the next signal
	err := s.link.Send(ctx, m)
	if err == nil {
		return nil
	}
	if over := errors.Is(err, ErrOver); over && ctx.Err() == nil {
		select { // why is about to be known
		case <-st.over:
		case <-ctx.Done():
		}
	} else if !over {
		st.Close()
		return err
	}
	why := st.failed()
	if why == io.EOF {
		return nil // a probe that is answered in the server's name
	}
	st.Close()
	if ue, ok := errors.AsType[*shim.UpstreamError](why); ok {
		unsent := *ue
		unsent.Unsent = true
		return &unsent
	}
	return context.Cause(ctx)
}

// left is told that nobody reads a stream any more.
func (s *server) left(st *stream) {
	s.mu.Lock()
	open := s.asked[st.id.Key()] == st
	if open {
		delete(s.asked, st.id.Key())
	}
	if s.gets[st.session] == st {
		delete(s.gets, st.session)
	}
	lost := open && st == s.greeting
	s.rest()
	s.mu.Unlock()
	switch {
	case lost: // whether the handshake succeeds will not be known
		s.quit()
	case open && !s.key.legacy && st.method != mcp.MethodDiscover:
		// Over HTTP the end of the connection is the cancellation (protocol.md H6).
		s.later(mcp.AppendCancelled(nil, st.id, ""), func() {})
	}
}

// later sends a message from a goroutine of its own: the one that reads what the server says
// must not wait for the server to read. done is called afterwards.
func (s *server) later(message []byte, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		done()
		return
	}
	s.t.running.Go(func() { // the Transport still waits for the goroutine that reads
		defer done()
		err := s.link.Send(context.Background(), Message{Bytes: message}) // bounded by the Link
		if r, ok := errors.AsType[*Refusal](err); ok {
			r.Response.Body.Close()
		}
	})
}

// greet shakes hands for one session. A server knows one handshake (protocol.md 5.2, 5.3): where
// sessions share it, each gets the answer to the first.
func (s *server) greet(ctx context.Context, st *stream, m Message) error {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return ErrOver
	}
	s.sessions[st.session] = true
	s.open(st)
	s.asked[st.id.Key()] = st
	hello, first := s.hello, s.hello == nil && s.greeting == nil
	switch {
	case first:
		s.greeting = st
	case hello == nil:
		s.waiting = append(s.waiting, st)
	default:
		delete(s.asked, st.id.Key())
		s.rest()
	}
	s.mu.Unlock()
	switch {
	case first:
		return s.write(ctx, st, m)
	case hello != nil:
		st.answer(jsonrpc.AppendResult(nil, st.id, hello))
	}
	return nil
}

// greeted hands the answer to the handshake to all who wait for it.
func (s *server) greeted(st *stream, m jsonrpc.Message) {
	s.mu.Lock()
	if s.greeting != st {
		s.mu.Unlock()
		return
	}
	s.greeting = nil
	waiting := s.waiting
	s.waiting = nil
	for _, other := range waiting {
		delete(s.asked, other.id.Key())
	}
	if m.Kind == jsonrpc.Result {
		s.hello = m.Result
	}
	s.rest()
	s.mu.Unlock()
	for _, other := range waiting {
		if m.Kind == jsonrpc.Result {
			other.answer(jsonrpc.AppendResult(nil, other.id, m.Result))
		} else {
			other.answer(jsonrpc.AppendError(nil, other.id, m.Error))
		}
	}
	if m.Kind != jsonrpc.Result {
		s.quit()
	}
}

// listen opens the stream of a session for what belongs to no request. It takes the place of
// one that is open.
func (s *server) listen(st *stream) bool {
	s.mu.Lock()
	if s.over || !s.sessions[st.session] {
		s.mu.Unlock()
		return false
	}
	old := s.gets[st.session]
	s.open(st)
	s.gets[st.session] = st
	s.mu.Unlock()
	if old != nil {
		old.end(io.EOF)
	}
	return true
}

// leave ends a session. A server that is not shared ends with it.
func (s *server) leave(session string) {
	s.mu.Lock()
	delete(s.sessions, session)
	st := s.gets[session]
	delete(s.gets, session)
	alone := s.own
	s.rest()
	s.mu.Unlock()
	if st != nil {
		st.end(io.EOF)
	}
	if alone {
		s.quit()
	}
}

// tell sends what is not answered. Of several handshakes, the first to be completed counts.
func (s *server) tell(ctx context.Context, method string, m Message) error {
	s.mu.Lock()
	over, again := s.over, method == mcp.NotifyInitialized && s.told
	s.told = s.told || method == mcp.NotifyInitialized
	s.mu.Unlock()
	switch {
	case over:
		return ErrOver
	case again:
		return nil
	}
	return s.link.Send(ctx, m)
}
