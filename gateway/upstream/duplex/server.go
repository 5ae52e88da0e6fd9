package duplex

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// taskUse is how long a server counts as used after a request about a task. A client makes one at least once
// a minute.
const taskUse = 2 * time.Minute

// server is one running server: its users, and its requests. The Transport owns it and waits for its end. mu
// guards the fields below it; t.mu is never taken under it.
type server struct {
	t       *Transport
	link    Link  // nil while it is being opened; then t.mu guards it
	owner   Owner // whose modern requests may share it
	begun   time.Time
	replies chan struct{} // places for the goroutines that answer the server in the gateway's name

	mu       sync.Mutex
	over     bool               // closed for requests
	served   bool               // it has said something
	worked   bool               // it has answered more than a handshake
	modern   bool               // it was asked more than its era, outside of a session
	session  string             // "" outside of a session
	askable  bool               // the client of the session can be asked
	serial   int                // that of the latest message sent
	notes    []int              // serials of sent notifications and responses, oldest first
	asked    map[string]*stream // requests in flight, by the key of their id
	get      *stream            // for messages outside of any request; nil if absent
	claimed  time.Time          // when it became a session
	early    []jsonrpc.Message  // notifications from before its client listened
	listened bool               // its client has listened
	held     []*jsonrpc.Message // questions that wait until the client can be asked
	idle     *time.Timer        // ends it while it is unused; nil if that is never
	since    time.Time          // unused since then
	task     time.Time          // until then a task is in use
}

// claimSession makes the server a session, which is opened with these parameters of an initialize. It reports
// false for a server that was asked more than its era.
func (s *server) claimSession(session string, params []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.modern || s.session != "" || len(s.asked) > 0 {
		return false
	}
	capabilities, _ := jsonrpc.Get(params, "capabilities")
	s.session, s.askable, s.claimed = session, mcp.MayBeAsked(capabilities), time.Now()
	return true
}

// addRequest adds a request in flight. It reports false for a server that is over, or that has become another
// session meanwhile.
func (s *server) addRequest(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.session != st.m.Session {
		return false
	}
	if s.session == "" && st.m.Method != mcp.MethodDiscover {
		s.modern = true
	}
	s.serial++
	st.serial = s.serial
	s.asked[st.m.ID.Key()] = st
	s.stopIdleTimer()
	return true
}

// stopIdleTimer stops the timer of an idle server. s.mu is held.
func (s *server) stopIdleTimer() {
	if s.idle != nil {
		s.idle.Stop()
	}
}

// isUsed reports whether a request, a listener or a task needs the server. s.mu is held.
func (s *server) isUsed() bool {
	heard := s.get != nil && (s.get.m.IsHeard == nil || s.get.m.IsHeard())
	return len(s.asked) > 0 || heard || time.Now().Before(s.task)
}

// startIdleTimer starts the timer of an unused server. s.mu is held.
func (s *server) startIdleTimer() {
	if len(s.asked) > 0 || s.over {
		return
	}
	s.since = time.Now()
	d := s.t.cfg.Idle
	if s.get != nil || d <= 0 {
		return
	}
	if left := time.Until(s.task); left > d {
		d = left
	}
	if s.idle == nil {
		s.idle = time.AfterFunc(d, s.expireIdle)
	} else {
		s.idle.Reset(d)
	}
}

// unusedSince returns since when the server has been unused; false if it is used.
func (s *server) unusedSince() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.link != nil && !s.isUsed() && !s.over
}

// isOver reports whether the server is closed for requests.
func (s *server) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// expireIdle ends a server that is idle.
func (s *server) expireIdle() {
	if s.retireUnused() {
		s.t.removeServer(s)
		s.link.Stop()
	}
}

// retireUnused closes an unused server for requests, and reports whether it did.
func (s *server) retireUnused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.isUsed() {
		return false
	}
	s.closeServer()
	if s.get != nil {
		s.get.endStream(io.EOF)
		s.get = nil
	}
	return true
}

// closeServer closes the server for requests. s.mu is held.
func (s *server) closeServer() {
	s.over, s.held, s.early = true, nil, nil
	s.stopIdleTimer()
}

// quitServer ends the server in order. Requests in flight fail.
func (s *server) quitServer() {
	s.failStreams(&Exit{Kind: shim.KindSession, How: "was ended by the gateway"})
	s.link.Stop()
}

// failStreams closes the server, and ends its streams.
func (s *server) failStreams(e *Exit) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	s.closeServer()
	asked, get := s.asked, s.get
	s.asked, s.get = nil, nil
	why := e.toError(s.t.cfg.What, s.isPrivate() || !s.served)
	s.mu.Unlock()
	s.t.removeServer(s)
	if get != nil {
		get.endStream(why)
	}
	for _, st := range asked {
		st.endStream(why)
	}
}

// isPrivate reports whether all output of the server is for one user. s.mu is held.
func (s *server) isPrivate() bool { return s.session != "" || s.owner.Private }

// sendRequest sends a request. The stream has the messages of the request, and ends with the answer. ErrOver
// says that the request was not sent. A server that has never worked says why in place of it.
func (s *server) sendRequest(ctx context.Context, st *stream, m *transport.Outgoing) error {
	if !s.addRequest(st) {
		return ErrOver
	}
	out := outgoing{Sender: m.Sender}
	sent := *m
	sent.Sender = &out
	err := s.link.Send(ctx, &sent, st.wake) // the reader looks before it waits for the next signal
	if err == nil {
		return nil
	}
	if !errors.Is(err, ErrOver) {
		st.unsent = !out.reached.Load()
		st.Close()
		return err
	}
	why := st.awaitEnd() // it is about to come
	if why == io.EOF {
		return nil // the server has answered before it had read all
	}
	st.Close()
	if s.hasWorked() && !out.reached.Load() {
		return ErrOver // it has ended between two requests
	}
	if ue, ok := errors.AsType[*shim.UpstreamError](why); ok {
		unsent := *ue
		unsent.Unsent = true
		return &unsent
	}
	return why
}

// hasWorked reports whether the server has answered more than a handshake.
func (s *server) hasWorked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worked
}

// outgoing is the Sender of a request, and notes whether the server may have got it.
type outgoing struct {
	transport.Sender
	reached atomic.Bool
}

// NoteReached implements transport.Sender.
func (o *outgoing) NoteReached() {
	o.reached.Store(true)
	o.Sender.NoteReached()
}

// noteLeft is called when the reader of a stream has left.
func (s *server) noteLeft(st *stream) {
	s.mu.Lock()
	open := s.asked[st.m.ID.Key()] == st
	if open {
		delete(s.asked, st.m.ID.Key())
	}
	if s.get == st {
		s.get = nil
	}
	modern := s.session == ""
	s.startIdleTimer()
	s.mu.Unlock()
	switch {
	case open && st.m.Method == mcp.MethodInitialize: // the outcome of the handshake stays unknown
		s.quitServer()
	case open && !st.unsent && modern && st.m.Method != mcp.MethodDiscover:
		// Over HTTP the end of the connection is the cancellation (protocol.md H6).
		s.sendLater(mcp.AppendCancelled(nil, st.m.ID, ""), func() {})
	}
}

// sendLater sends a message in a goroutine of its own: the one that receives must not wait for the server to
// read. done is called afterwards.
func (s *server) sendLater(message []byte, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		done()
		return
	}
	s.noteMessage()
	s.t.running.Go(func() { // the Transport still waits for the goroutine that reads
		defer done()
		_ = s.link.Send(context.Background(), &transport.Outgoing{Body: message, Own: true, Sender: transport.Nobody{}}, nil) // ends with the server
	})
}

// maxNotes bounds the remembered messages that a server may answer, though it must not.
const maxNotes = 64

// noteMessage counts a message that has no answer. s.mu is held.
func (s *server) noteMessage() {
	s.serial++
	if len(s.notes) < maxNotes {
		s.notes = append(s.notes, s.serial)
	}
}

// openListening opens the stream of the session for messages outside of any request. It replaces the one
// before, and gets the questions that have waited for it.
func (s *server) openListening(st *stream) bool {
	s.mu.Lock()
	if s.over || s.session == "" {
		s.mu.Unlock()
		return false
	}
	old, held := s.get, s.held
	s.get, s.held = st, nil
	s.stopIdleTimer()
	for _, m := range s.early {
		st.putMessage(m)
	}
	s.early, s.listened = nil, true
	held = slices.DeleteFunc(held, func(m *jsonrpc.Message) bool { return st.putMessage(*m) })
	s.mu.Unlock()
	for _, m := range held {
		s.refuseQuestion(*m)
	}
	if old != nil {
		old.endStream(io.EOF)
	}
	return true
}
