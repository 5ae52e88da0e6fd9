package duplex

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

const (
	// maxHeld is how many questions wait until the client of a session can be asked, and holdFor is how
	// long.
	maxHeld = 64
	holdFor = 10 * time.Second
	// maxEarlyBytes bounds a notification that is kept until the client listens.
	maxEarlyBytes = 64 << 10
	// maxReplies is how many requests of a server are answered at a time in the gateway's name: all that
	// were held, and some more.
	maxReplies = maxHeld + 16
	// garbageInterval is the least time between two logs about invalid messages of a server.
	garbageInterval = 10 * time.Second
)

// readUntilEnd reads the server's messages until it ends, and waits for its end.
func (s *server) readUntilEnd() {
	e := s.link.Fate(s.readMessages())
	s.mu.Lock()
	expected, served := s.over, s.served
	probed := !s.modern && s.session == ""
	short := time.Since(s.begun) < s.t.cfg.Short && !(e.Usual && s.worked)
	e.Usual = e.Usual && served && len(s.asked) == 0
	s.mu.Unlock()
	if !expected { // the server has ended by itself
		s.t.noteEnded(s, e, served, probed, short)
		s.failStreams(e)
	}
	s.link.Stop()
	s.link.Close()
	s.t.buryServer(s)
}

// readMessages hands out messages until the link ends. It skips invalid messages: programs print to
// their standard output, which they must not (protocol.md 5.3).
func (s *server) readMessages() error {
	var logged time.Time
	for skipped := 0; ; {
		said, err := s.link.Receive()
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(said)) == 0 || s.takeMessage(said) {
			continue
		}
		skipped++
		if now := time.Now(); now.Sub(logged) >= garbageInterval {
			s.t.cfg.Logger.Warn("the server sent what is no JSON-RPC message", "times", skipped, "bytes", len(said))
			logged, skipped = now, 0
		}
	}
}

// takeMessage hands a message to its stream; false if it is invalid.
func (s *server) takeMessage(said []byte) bool {
	said = jsonrpc.Readable(said)
	m, err := jsonrpc.ParseLenient(said)
	if err != nil {
		return s.takeSpoilt(said, err)
	}
	s.mu.Lock()
	s.served = true
	s.mu.Unlock()
	switch m.Kind {
	case jsonrpc.Result, jsonrpc.ErrorResponse:
		s.takeAnswer(m)
	case jsonrpc.Notification:
		streams := s.streamsFor(m)
		for _, st := range streams {
			st.putMessage(m)
		}
		if len(streams) == 0 {
			s.keepEarly(m)
		}
		if m.Method == mcp.NotifyCancelled {
			s.takeCancellation(m)
		}
	case jsonrpc.Request:
		s.takeQuestion(m)
	}
	return true
}

// keepEarly keeps what a session says before its client listens for the first time.
func (s *server) keepEarly(m jsonrpc.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	soon := time.Since(s.claimed) < holdFor
	if s.session != "" && !s.listened && soon && len(s.early) < maxHeld && len(m.Raw) <= maxEarlyBytes && m.Method != mcp.NotifyProgress {
		s.early = append(s.early, m)
	}
}

// takeCancellation takes the cancellation of a held question, or of a subscriptions/listen, whose stream
// it ends. Only some servers answer that one as well (protocol.md 1.3).
func (s *server) takeCancellation(m jsonrpc.Message) {
	raw, _ := jsonrpc.Get(m.Params, "requestId")
	id, _ := jsonrpc.ParseID(raw)
	s.mu.Lock()
	s.held = slices.DeleteFunc(s.held, func(q *jsonrpc.Message) bool { return q.ID.Equal(id) })
	st := s.asked[keyOfOwn(raw)]
	if s.session != "" || st == nil || st.m.Method != mcp.MethodListen {
		s.mu.Unlock()
		return
	}
	delete(s.asked, st.m.ID.Key())
	s.startIdleTimer()
	s.mu.Unlock()
	st.endStream(io.EOF)
}

// takeAnswer hands an answer to the stream of its request.
func (s *server) takeAnswer(m jsonrpc.Message) {
	s.mu.Lock()
	st := s.asked[m.ID.Key()]
	if st == nil && m.ID.IsZero() {
		st = s.blamedRequest()
	}
	if st == nil { // its caller has gone, or the id is unknown
		s.mu.Unlock()
		return
	}
	delete(s.asked, st.m.ID.Key())
	s.notes = slices.DeleteFunc(s.notes, func(serial int) bool { return serial < st.serial })
	s.learnFromAnswer(st, m)
	session, refused := s.session, st.m.Method == mcp.MethodInitialize && m.Kind != jsonrpc.Result
	if refused {
		s.session = ""
	}
	s.startIdleTimer()
	s.mu.Unlock()
	if refused && !s.t.cfg.Personal {
		s.t.takeBack(s, session)
	}
	st.putAnswer(m)
	if refused && s.t.cfg.Personal {
		s.quitServer()
	}
}

// blamedRequest returns the request that an answer without an id belongs to: the only one in flight. It
// returns nil while it may be the answer to a notification, which servers written by hand give.
// s.mu is held.
func (s *server) blamedRequest() *stream {
	if len(s.notes) > 0 {
		s.notes = s.notes[1:]
		return nil
	}
	return s.onlyRequest()
}

// learnFromAnswer notes what an answer says of the server. s.mu is held.
func (s *server) learnFromAnswer(st *stream, m jsonrpc.Message) {
	s.worked = s.worked || st.m.Method != mcp.MethodInitialize && st.m.Method != mcp.MethodDiscover
	switch st.m.Method {
	case mcp.MethodTasksGet, mcp.MethodTasksUpdate, mcp.MethodTasksResult:
		s.task = time.Now().Add(taskUse)
	case mcp.MethodToolsCall:
		_, legacy := jsonrpc.Get(m.Result, "task", "taskId")
		_, modern := jsonrpc.Get(m.Result, "taskId")
		if legacy || modern {
			s.task = time.Now().Add(taskUse)
		}
	}
}

// takeQuestion hands a request of the server to its session: to the listener, or else to the newest
// request. If the session has neither, the question is held. A ping is answered, and a question that
// finds no client is refused, since the server waits for an answer.
func (s *server) takeQuestion(m jsonrpc.Message) {
	if m.Method == mcp.MethodPing {
		s.replyToServer(jsonrpc.AppendResult(nil, m.ID, nil))
		return
	}
	s.mu.Lock()
	var st *stream
	switch {
	case s.session == "":
	case m.Method == mcp.MethodRootsList && s.askable: // the roots are asked of the listener only
		st = s.get
	default:
		st = s.asideStream(mayAsk)
	}
	held := st == nil && s.askable && s.session != "" && len(s.held) < maxHeld && !s.over
	if held {
		s.holdQuestion(m)
	}
	s.mu.Unlock()
	if !held && (st == nil || !st.putMessage(m)) {
		s.refuseQuestion(m)
	}
}

// holdQuestion holds a question until its client can be asked, and refuses it after holdFor. s.mu is
// held.
func (s *server) holdQuestion(m jsonrpc.Message) {
	q := &m
	s.held = append(s.held, q)
	time.AfterFunc(holdFor, func() {
		s.mu.Lock()
		i := slices.Index(s.held, q)
		if i >= 0 {
			s.held = slices.Delete(s.held, i, i+1)
		}
		s.mu.Unlock()
		if i >= 0 {
			s.refuseQuestion(m)
		}
	})
}

// refuseQuestion answers a question that has no client to ask.
func (s *server) refuseQuestion(m jsonrpc.Message) {
	s.replyToServer(jsonrpc.AppendError(nil, m.ID, &jsonrpc.Error{Code: mcp.CodeMethodNotFound, Message: "there is nobody to ask"}))
}

// replyToServer answers the server, or drops the answer if too many wait for the server to read.
func (s *server) replyToServer(message []byte) {
	select {
	case s.replies <- struct{}{}:
		s.sendLater(message, func() { <-s.replies })
	default:
	}
}

// streamsFor returns the streams that a notification belongs to: that of the request or the subscription
// that it names, or else those of the server's session. Where requests share a server and are all one
// user's, it may mean the only one of them.
func (s *server) streamsFor(m jsonrpc.Message) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := jsonrpc.Get(m.Params, "_meta", mcp.MetaSubscriptionID); ok {
		return nonNil(s.asked[keyOfOwn(id)])
	}
	legacy := s.session != ""
	switch m.Method {
	case mcp.NotifyProgress:
		token, _ := jsonrpc.Get(m.Params, mcp.MetaProgressToken)
		if st := s.asked[keyOfOwn(token)]; st != nil || !legacy { // otherwise it is that of a task: the session knows the token
			return nonNil(st)
		}
	case mcp.NotifyCancelled: // of a question: on any stream
		if legacy {
			return s.allStreams()
		}
		return nil
	case mcp.NotifyMessage: // it names no request
		if st := s.onlyRequest(); st != nil && s.isPrivate() {
			return nonNil(st)
		}
	}
	switch {
	case legacy:
		return nonNil(s.asideStream(func(*stream) bool { return true }))
	case s.owner.Private:
		return s.listeningStreams()
	}
	return nil
}

func nonNil(st *stream) []*stream {
	if st == nil {
		return nil
	}
	return []*stream{st}
}

// keyOfOwn is the key of an id of ours that the server repeats.
func keyOfOwn(raw []byte) string {
	id, _ := jsonrpc.ParseEchoed(raw)
	return id.Key()
}

// allStreams returns the streams of the session. s.mu is held.
func (s *server) allStreams() []*stream {
	list := nonNil(s.get)
	for _, st := range s.asked {
		list = append(list, st)
	}
	return list
}

// listeningStreams returns the streams of subscriptions, or else that of the only request. s.mu is held.
func (s *server) listeningStreams() (list []*stream) {
	for _, st := range s.asked {
		if st.m.Method == mcp.MethodListen {
			list = append(list, st)
		}
	}
	if list == nil {
		list = nonNil(s.onlyRequest())
	}
	return list
}

// onlyRequest returns the only request in flight; nil if there are several. s.mu is held.
func (s *server) onlyRequest() (found *stream) {
	for _, st := range s.asked {
		switch {
		case st.m.Method == mcp.MethodListen:
		case found != nil:
			return nil
		default:
			found = st
		}
	}
	return found
}

// asideStream returns the stream for messages outside of any request of the session: that of its
// listener, or else that of the newest request that may have them. s.mu is held.
func (s *server) asideStream(may func(*stream) bool) *stream {
	if s.get != nil {
		return s.get
	}
	var newest *stream
	for _, st := range s.asked {
		if st.m.Method != mcp.MethodInitialize && may(st) && (newest == nil || st.serial > newest.serial) {
			newest = st
		}
	}
	return newest
}

// mayAsk reports whether a question may go to the stream of a request: a client that asks for a list
// waits only for that.
func mayAsk(st *stream) bool {
	return st.m.Method != mcp.MethodPing && !strings.HasSuffix(st.m.Method, "/list")
}
