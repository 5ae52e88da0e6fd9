package transporttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
)

// session is what the server keeps of one session. It knows these methods besides initialize,
// none of which is one of MCP:
//
//	test/echo     {text}  answers with text
//	test/steps    {n}     sends n progress notifications, then answers
//	test/chatter  {n}     sends n of 8 KiB each
//	test/ask      {}      asks, and answers with the result of the answer
//	test/wait     {}      is not answered before it is cancelled
//	test/announce {text}  sends a notification that belongs to no request, then answers
//	test/garbage  {n}     sends n things that are no messages, then answers
//	test/count    {}      answers with how often this session has asked for that
//	test/die      {}      ends the server
//	test/nan      {}      answers with what is no JSON
//	test/nameless {}      answers with an error without an id
//	test/deaf     {n}     reads nothing for n milliseconds, then answers
//	test/roots    {}      answers with the roots that the client was asked for when it was ready
//
// A notification test/wrong is answered with an error without an id.
//
// send sends one message; about is the id of the request that it belongs to, "" for none.
type session struct {
	send  func(about string, message []byte)
	die   func()
	ended chan struct{} // closed at the end of the session

	reading sync.Mutex // held while it is deaf
	rooted  chan json.RawMessage

	mu      sync.Mutex
	roots   bool // the client has roots
	counted int
	asked   int
	answers map[string]chan json.RawMessage
	waiting map[string]jsonrpc.ID
}

func newSession(send func(about string, message []byte), die func()) *session {
	return &session{send: send, die: die, ended: make(chan struct{}), rooted: make(chan json.RawMessage, 1), answers: map[string]chan json.RawMessage{}, waiting: map[string]jsonrpc.ID{}}
}

// params are those of all methods.
type params struct {
	Text      string
	N         int
	RequestID json.RawMessage
	Meta      struct{ ProgressToken json.RawMessage } `json:"_meta"`

	Capabilities struct{ Roots json.RawMessage }
}

// take handles one message. It may block.
func (s *session) take(raw []byte) {
	m, err := jsonrpc.ParseLenient(raw)
	if err != nil {
		return
	}
	var p params
	_ = json.Unmarshal(m.Params, &p)
	switch m.Kind {
	case jsonrpc.Result, jsonrpc.ErrorResponse:
		s.mu.Lock()
		c := s.answers[m.ID.Key()]
		s.mu.Unlock()
		if c != nil {
			c <- m.Result
		}
	case jsonrpc.Notification:
		s.hear(m.Method, p)
	case jsonrpc.Request:
		s.serve(m, p)
	}
}

// takeSoon takes a message without waiting for that, except a test/wrong: what comes after it must not overtake it.
func (s *session) takeSoon(raw []byte) {
	if bytes.Contains(raw, []byte(`"test/wrong"`)) {
		s.take(raw)
	} else {
		go s.take(raw)
	}
}

// hear takes a notification.
func (s *session) hear(method string, p params) {
	switch method {
	case "notifications/cancelled":
		s.cancel(p.RequestID)
	case "notifications/initialized":
		s.mu.Lock()
		roots := s.roots
		s.mu.Unlock()
		if roots {
			go func() { s.rooted <- s.ask("", "roots/list") }()
		}
	case "test/wrong":
		s.send("", []byte(nameless))
	}
}

// nameless is an error without an id.
const nameless = `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"nameless"}}`

// serve answers a request.
func (s *session) serve(m jsonrpc.Message, p params) {
	about := m.ID.Key()
	switch m.Method {
	case "initialize":
		s.mu.Lock()
		s.roots = p.Capabilities.Roots != nil
		s.mu.Unlock()
		s.answer(m, `{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"script","version":"1"}}`)
	case "test/echo":
		text, _ := json.Marshal(p.Text)
		s.answer(m, `{"text":`+string(text)+`}`)
	case "test/steps":
		for i := range p.N {
			s.progress(about, p, i, "")
		}
		s.answer(m, `{}`)
	case "test/chatter":
		for i := range p.N {
			s.progress(about, p, i, strings.Repeat("x", 8<<10))
		}
		s.answer(m, `{}`)
	case "test/ask":
		s.answer(m, string(s.ask(about, "test/question")))
	case "test/wait":
		s.mu.Lock()
		s.waiting[about] = m.ID
		s.mu.Unlock()
		s.progress(about, p, 0, "")
	case "test/announce":
		s.send("", fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/test","params":{"text":%q}}`, p.Text))
		s.answer(m, `{}`)
	case "test/garbage":
		for range p.N {
			s.send(about, []byte(`nonsense {`))
		}
		s.answer(m, `{}`)
	case "test/count":
		s.mu.Lock()
		s.counted++
		n := s.counted
		s.mu.Unlock()
		s.answer(m, fmt.Sprintf(`{"n":%d}`, n))
	case "test/die":
		s.die()
	case "test/nan":
		s.answer(m, `{"n":NaN}`)
	case "test/nameless":
		s.send(about, []byte(nameless))
	case "test/deaf":
		s.reading.Lock()
		<-time.After(time.Duration(p.N) * time.Millisecond)
		s.reading.Unlock()
		s.answer(m, `{}`)
	case "test/roots":
		s.answer(m, string(<-s.rooted))
	default:
		s.send(about, jsonrpc.AppendError(nil, m.ID, &jsonrpc.Error{Code: -32601, Message: "unknown"}))
	}
}

func (s *session) answer(m jsonrpc.Message, result string) {
	s.send(m.ID.Key(), jsonrpc.AppendResult(nil, m.ID, json.RawMessage(result)))
}

func (s *session) progress(about string, p params, i int, text string) {
	s.send(about, fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"message":%q}}`, p.Meta.ProgressToken, i+1, text))
}

// ask asks on the stream of a request, and returns the result.
func (s *session) ask(about, method string) json.RawMessage {
	c := make(chan json.RawMessage, 1)
	s.mu.Lock()
	s.asked++
	id := jsonrpc.StringID(fmt.Sprint("question-", s.asked))
	s.answers[id.Key()] = c
	s.mu.Unlock()
	s.send(about, jsonrpc.AppendRequest(nil, id, method, []byte(`{}`)))
	select {
	case answer := <-c:
		return answer
	case <-s.ended:
		return json.RawMessage("null")
	}
}

// cancel answers a request that waits.
func (s *session) cancel(raw json.RawMessage) {
	id, err := jsonrpc.ParseID(raw)
	if err != nil {
		return
	}
	s.mu.Lock()
	_, ok := s.waiting[id.Key()]
	delete(s.waiting, id.Key())
	s.mu.Unlock()
	if ok {
		s.send(id.Key(), jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: -32000, Message: "cancelled"}))
	}
}
