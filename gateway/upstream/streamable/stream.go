package streamable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/budget"
	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/pool"
	"taskgate/internal/work"
	"taskgate/shim"
)

// stream hands out the messages of a response one by one.
type stream struct {
	head   transport.Head
	body   io.ReadCloser
	events *eventstream.Reader // nil for a JSON body
	whole  [][]byte            // the messages of a JSON body that are left
	lent   *pool.Buffer        // has them; nil if that is not lent, or is the hold's
	latest transport.Event
	m      transport.Outgoing // the request, without its Body
}

func beginStream(resp *http.Response, m *transport.Outgoing) *stream {
	s := &stream{head: transport.Head{Session: resp.Header.Get(mcp.HeaderSession), Protocol: versionOf(resp)}, m: *m}
	if s.head.Session != "" {
		s.head.Cookie = CookieOf(resp)
	}
	s.m.Body, s.m.Params = nil, nil // they may be large
	return s
}

// maxCookie bounds the cookies of a session, in bytes.
const maxCookie = 4 << 10

// CookieOf returns the cookies that a response sets, as a request sends them. They go to the one URL of the server, so
// their domains, paths and times are left out. "" if they are too large.
func CookieOf(resp *http.Response) string {
	var kept []*http.Cookie
	for _, c := range resp.Cookies() {
		kept = slices.DeleteFunc(kept, func(other *http.Cookie) bool { return other.Name == c.Name })
		if removes := c.MaxAge < 0 || c.MaxAge == 0 && !c.Expires.IsZero() && c.Expires.Before(time.Now()); !removes {
			kept = append(kept, c)
		}
	}
	again := http.Request{Header: make(http.Header)}
	for _, c := range kept {
		again.AddCookie(c)
	}
	if text := again.Header.Get("Cookie"); len(text) <= maxCookie {
		return text
	}
	return ""
}

// readAnswer judges the head of a response to a request, and begins its stream.
func (t *Transport) readAnswer(resp *http.Response, m *transport.Outgoing) (transport.Stream, error) {
	if resp.StatusCode/100 != 2 {
		return nil, t.ReadStatus(resp, m)
	}
	se := &transport.StatusError{Status: resp.StatusCode, Protocol: versionOf(resp)}
	switch kind, coding := mediaType(resp.Header), resp.Header.Get("Content-Encoding"); {
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent:
		se.Reason = "it accepted a request without answering it"
	case coding != "" && coding != "identity":
		se.Reason = "the answer is compressed"
	case kind == mcp.TypeSSE: // any other success will do: NestJS says 201 to a POST
		return t.newStream(resp, m), nil
	case kind == mcp.TypeJSON:
		return t.readJSON(resp, m)
	case kind == "":
		se.Reason = "the answer has no content type"
	default:
		se.Reason = "the answer is neither JSON nor an event stream"
		se.Text = wordsOf(resp, readSome(resp.Body, 20*maxWords))
	}
	resp.Body.Close()
	return nil, se
}

func (t *Transport) newStream(resp *http.Response, m *transport.Outgoing) *stream {
	s := beginStream(resp, m)
	s.body = resp.Body
	s.events = eventstream.NewReader(resp.Body, int(t.cfg.MaxResult))
	s.events.KeepLast()
	s.events.Account(func(by int) error {
		if by < 0 {
			s.m.Hold.Give(int64(-by))
			return nil
		}
		return s.m.TakeRoom(int64(by))
	})
	return s
}

// readJSON reads a whole JSON body. Its bytes are kept: the answer aliases them. They are lent only if they are the result of
// a tool, which nobody but the caller reads: lists are remembered, and notifications go elsewhere.
func (t *Transport) readJSON(resp *http.Response, m *transport.Outgoing) (transport.Stream, error) {
	defer resp.Body.Close()
	lender := m.Hold
	if m.Method != mcp.MethodToolsCall {
		lender = nil
	}
	body, lent, err := budget.ReadLent(lender, resp.Body, resp.ContentLength, t.cfg.MaxResult, m.TakeRoom)
	if errors.Is(err, budget.ErrTooLarge) {
		err = &shim.UpstreamError{Kind: shim.KindTooLarge, Message: fmt.Sprintf("the answer of the server is larger than %d bytes", t.cfg.MaxResult)}
	}
	if err != nil {
		return nil, err
	}
	s := beginStream(resp, m)
	s.head.Single, s.lent = true, lent
	m.Hold.InTurn(len(body), func() { s.whole = messagesOf(jsonrpc.Readable(body)) })
	if len(s.whole) > 1 {
		s.abandonLent()
	}
	return s, nil
}

// maxMessages bounds the messages of a JSON body.
const maxMessages = 1000

// messagesOf returns the messages of a JSON body: the elements of an array, else the body. Servers of Effect answer with
// an array of one (effect #6274), and those of the PHP SDK with all that they had to say before the answer
// (createJsonResponse of php-sdk). The TypeScript SDK takes both.
func messagesOf(body []byte) (all [][]byte) {
	for m := range jsonrpc.Elements(body) {
		if all = append(all, m); len(all) > maxMessages {
			break
		}
	}
	if all == nil || len(all) > maxMessages {
		all = [][]byte{body}
	}
	return all
}

// parseMessage reads a message, which is readable.
func (s *stream) parseMessage(b []byte) (msg jsonrpc.Message, err error) {
	s.m.Hold.InTurn(len(b), func() { msg, err = jsonrpc.ParseLenient(b) })
	if err != nil {
		return msg, &shim.UpstreamError{Kind: shim.KindProtocol, Message: "the server sent something that is no JSON-RPC message", Err: err}
	}
	return msg, nil
}

// Head returns what the head of the response has told.
func (s *stream) Head() transport.Head { return s.head }

// Next waits for the next event. The goroutine of a call spends its time here and keeps the stack that it has
// grown to, so another one parses deep messages.
func (s *stream) Next() *transport.Event {
	e := &s.latest
	*e = transport.Event{} // the event before may be large
	switch {
	case len(s.whole) > 0:
		e.Message, e.Err = s.parseMessage(s.whole[0])
		if len(s.whole) == 1 && e.Err == nil && e.Message.Kind == jsonrpc.Result {
			s.m.Hold.Own(s.lent)
			s.lent = nil
		}
		s.whole = s.whole[1:]
		return e
	case s.events == nil:
		e.Err = io.EOF
		return e
	}
	ev, err := s.events.Next()
	if err != nil {
		e.Err = err
		return e
	}
	if ev.Cut && !json.Valid(jsonrpc.Readable(ev.Data)) { // some servers leave out the last blank line; others are cut off
		e.Err = io.ErrUnexpectedEOF
		return e
	}
	s.readEvent(e, &ev)
	return e
}

// readEvent reads an event. It ignores types other than messages, which are foreign to MCP. An empty event only carries
// its id (X9), and so does one that is no message: some servers send pings of their own (python-sdk #1146). One that may
// be the answer ends the stream.
func (s *stream) readEvent(e *transport.Event, ev *eventstream.Event) {
	e.ID, e.HasID, e.Retry = ev.ID, ev.HasID, ev.Retry
	data := jsonrpc.Readable(ev.Data)
	switch {
	case ev.Type != "" && ev.Type != "message", len(bytes.TrimSpace(data)) == 0:
	case isFlat(data):
		e.Message, e.Err = s.parseMessage(data)
	default:
		e.Err = work.Apart(func() (err error) {
			e.Message, err = s.parseMessage(data)
			return err
		})
	}
	if e.Err != nil && !s.mayBeAnswer(data) {
		e.Err = nil
	}
}

// mayBeAnswer reports whether what is no message was meant as the answer.
func (s *stream) mayBeAnswer(said []byte) bool {
	answer, id := jsonrpc.ReadSpoilt(said)
	if id.IsZero() {
		return answer && s.m.Method != "" // on the stream of its request
	}
	return id.Equal(s.m.ID)
}

// isFlat reports whether JSON is nested so little that parsing it takes little stack: progress and log
// messages usually are, and questions are deeper. Large JSON is not looked through. The goroutine of a call
// keeps the stack that it has grown to while it waits for the next event.
func isFlat(b []byte) bool {
	return len(b) < 4<<10 && bytes.Count(b, []byte("{"))+bytes.Count(b, []byte("[")) <= 3
}

// Close drops the response.
func (s *stream) Close() {
	if s.body != nil {
		s.body.Close()
	}
}

// abandonLent leaves the body to those who read it.
func (s *stream) abandonLent() {
	s.lent.Abandon()
	s.lent = nil
}

// Finish drops the response once its end is seen, and waits only for that.
func (s *stream) Finish() {
	s.abandonLent()
	if s.events != nil {
		s.events.Release()
	}
	if s.body != nil {
		Drain(s.body)
	}
}
