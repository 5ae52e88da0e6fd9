package duplex

import (
	"bytes"
	"io"
	"unicode/utf8"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// maxGarbage is how many things in a row may be no messages. Programs exist that print a
// greeting to their standard output, which they must not (protocol.md 5.3).
const maxGarbage = 100

// maxReplies is how many requests of a server are answered at a time in the gateway's name.
const maxReplies = 16

// run reads what the server says until it ends, and waits for its end.
func (s *server) run() {
	e := s.link.Fate(s.read())
	s.mu.Lock()
	expected, served := s.over, s.served
	e.Usual = e.Usual && served && len(s.asked) == 0
	s.mu.Unlock()
	if !expected { // the gateway has not ended it
		s.t.ended(s, e, served)
		s.fail(e)
	}
	s.link.Stop()
	s.link.Close()
}

// read hands out messages until there are no more.
func (s *server) read() error {
	for garbage := 0; garbage < maxGarbage; {
		said, err := s.link.Receive()
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(said)) == 0 {
			continue
		}
		if s.take(said) {
			garbage = 0
			continue
		}
		if garbage++; garbage == 1 {
			s.t.cfg.Logger.Warn("the server sent what is no JSON-RPC message", "bytes", len(said))
		}
	}
	return ErrGarbage
}

// take reads what was received.
func (s *server) take(said []byte) bool {
	if !utf8.Valid(said) {
		said = bytes.ToValidUTF8(said, []byte("\uFFFD"))
	}
	jsonrpc.OneLine(said) // a line break would end a line of an event stream
	return s.message(said)
}

// message takes one message to where it belongs; false if it is none.
func (s *server) message(raw []byte) bool {
	m, err := jsonrpc.ParseLenient(raw)
	if err != nil {
		return false
	}
	s.mu.Lock()
	if !s.served {
		s.served = true
		defer s.t.works()
	}
	s.mu.Unlock()
	switch m.Kind {
	case jsonrpc.Result, jsonrpc.ErrorResponse:
		s.answered(m)
	case jsonrpc.Notification:
		for _, st := range s.hearers(m) {
			st.put(m.Raw)
		}
		if m.Method == mcp.NotifyCancelled && !s.key.legacy {
			s.unsubscribed(m)
		}
	case jsonrpc.Request:
		s.question(m)
	}
	return true
}

// unsubscribed ends the stream of a subscriptions/listen that the server has cancelled. Some
// answer it as well, some do not (protocol.md 1.3).
func (s *server) unsubscribed(m jsonrpc.Message) {
	id, _ := jsonrpc.Get(m.Params, "requestId")
	s.mu.Lock()
	st := s.asked[keyOf(id)]
	if st == nil || st.method != mcp.MethodListen {
		s.mu.Unlock()
		return
	}
	delete(s.asked, st.id.Key())
	s.rest()
	s.mu.Unlock()
	st.end(io.EOF)
}

// answered takes an answer to the stream of its request. An error without an id belongs to the
// only request in flight.
func (s *server) answered(m jsonrpc.Message) {
	s.mu.Lock()
	st := s.asked[m.ID.Key()]
	if st == nil && m.ID.IsZero() {
		st = s.only("")
	}
	if st != nil {
		delete(s.asked, st.id.Key())
		s.rest()
	}
	s.mu.Unlock()
	if st == nil {
		return // its caller has gone
	}
	st.answer(m.Raw)
	switch {
	case st.method == mcp.MethodInitialize:
		s.greeted(st, m)
	case st.method == mcp.MethodDiscover && s.probe:
		s.judge(m)
	}
}

// judge reads the answer to the first server/discover.
func (s *server) judge(m jsonrpc.Message) {
	s.mu.Lock()
	s.proven = s.proven || modern(m)
	proven := s.proven
	s.mu.Unlock()
	if !proven {
		s.quit() // the request may have confused it; a legacy session gets another process
	}
}

// doubt ends a server that has not answered its first server/discover in time.
func (s *server) doubt(st *stream) {
	s.mu.Lock()
	silent := s.asked[st.id.Key()] == st && !s.proven
	s.mu.Unlock()
	if silent {
		s.quit() // which answers in its name
	}
}

// modern reports whether the answer to server/discover is that of a server which can be spoken
// to in a modern version (protocol.md 2.10).
func modern(m jsonrpc.Message) bool {
	if m.Error != nil {
		switch m.Error.Code {
		case mcp.CodeUnsupportedVersion, mcp.CodeHeaderMismatch, mcp.CodeMissingCapability, mcp.CodeDraftUnsupportedVersion:
			return true
		}
		return false
	}
	list, _ := jsonrpc.Get(m.Result, "supportedVersions")
	for v := range jsonrpc.Elements(list) {
		if name, _ := jsonrpc.String(v); mcp.EraOf(name) == mcp.Modern {
			return true
		}
	}
	return false
}

// question takes a request of the server to the session that it is for. A ping is answered,
// and what is for nobody is refused: the server waits for an answer.
func (s *server) question(m jsonrpc.Message) {
	if m.Method == mcp.MethodPing {
		s.reply(jsonrpc.AppendResult(nil, m.ID, nil))
		return
	}
	s.mu.Lock()
	st := s.outside()
	s.mu.Unlock()
	if st == nil {
		s.reply(jsonrpc.AppendError(nil, m.ID, &jsonrpc.Error{Code: mcp.CodeMethodNotFound, Message: "there is nobody to ask"}))
		return
	}
	st.put(m.Raw)
}

// reply answers the server, unless that does not read.
func (s *server) reply(message []byte) {
	select {
	case s.replies <- struct{}{}:
		s.later(message, func() { <-s.replies })
	default:
	}
}

// hearers are the streams that a notification belongs to.
func (s *server) hearers(m jsonrpc.Message) []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var st *stream
	if id, ok := jsonrpc.Get(m.Params, "_meta", mcp.MetaSubscriptionID); ok {
		return some(s.asked[keyOf(id)])
	}
	switch m.Method {
	case mcp.NotifyProgress:
		token, _ := jsonrpc.Get(m.Params, mcp.MetaProgressToken)
		return some(s.asked[keyOf(token)])
	case mcp.NotifyCancelled: // of a question: wherever that went
		return s.all(true)
	case mcp.NotifyMessage: // it does not say to which request it belongs
		if st = s.only(""); st != nil {
			return some(st)
		}
	}
	if len(s.gets) == 0 && s.key.legacy {
		return some(s.outside())
	}
	return s.all(false)
}

func some(st *stream) []*stream {
	if st == nil {
		return nil
	}
	return []*stream{st}
}

// keyOf is the key of an id in a parameter.
func keyOf(raw []byte) string {
	id, err := jsonrpc.ParseID(raw)
	if err != nil {
		return ""
	}
	return id.Key()
}

// all are the streams of those who listen, and of all requests in flight if calls is set.
// s.mu is held.
func (s *server) all(calls bool) (list []*stream) {
	for _, st := range s.gets {
		list = append(list, st)
	}
	for _, st := range s.asked {
		if calls || st.method == mcp.MethodListen {
			list = append(list, st)
		}
	}
	return list
}

// only is the only request in flight, of one session if that is given; nil if there are
// several. s.mu is held.
func (s *server) only(session string) (found *stream) {
	for _, st := range s.asked {
		switch {
		case st.method == mcp.MethodListen, session != "" && st.session != session:
		case found != nil:
			return nil
		default:
			found = st
		}
	}
	return found
}

// outside is the stream for what belongs to no request: that of the session whose requests are
// in flight, or of the only session. It is nil where that is not clear: nobody must be asked
// in the name of another. s.mu is held.
func (s *server) outside() *stream {
	session, clear := "", true
	var newest *stream
	for _, st := range s.asked {
		clear = clear && (session == "" || session == st.session)
		session = st.session
		if newest == nil || st.serial > newest.serial {
			newest = st
		}
	}
	if session == "" && len(s.sessions) == 1 {
		for session = range s.sessions {
		}
	}
	if !clear {
		return nil
	}
	if st := s.gets[session]; st != nil {
		return st
	}
	return newest
}
