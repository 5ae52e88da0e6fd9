// Package fake is an MCP server for tests that does what it is told, and above
// all what a server must not do: it cuts streams, answers twice, speaks HTML,
// loses sessions. It counts how often each tool ran, so that a test can assert
// that a call was sent exactly once, and which connections and sessions are
// left.
//
// A test makes a [Server] of some [Mode] and says with [Server.Tool] or
// [Server.On] how a tool or a method behaves; everything else (discover,
// initialize, lists, the GET stream, DELETE) is served as the mode has it.
package fake

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// Mode is what kind of server it is.
type Mode int

// The modes.
const (
	Stateful     Mode = iota // 2025-11-25 with sessions
	Stateless                // 2025-11-25, no session id, no GET
	Modern                   // 2026-07-28
	Both                     // Modern and Stateful at once, and says so
	BothUnlisted             // the same, but it lists only the modern version
)

// Behaviour is how the server treats one request.
type Behaviour func(*Exchange)

// Server is one fake server. Its methods may be used from any goroutine.
type Server struct {
	URL string

	mode Mode
	t    testing.TB
	web  *httptest.Server

	mu        sync.Mutex
	methods   map[string]Behaviour // by method
	tools     map[string]Behaviour
	schemas   map[string]string
	caps      string
	runs      map[string]int
	seen      []Seen
	sessions  map[string]*session
	opened    int
	deleted   int
	conns     map[net.Conn]http.ConnState
	dialled   int
	waiting   map[string]chan json.RawMessage // answers to the server's requests
	replayAll bool
	deaf      bool
	lateHeads bool
	serial    int
	closing   chan struct{}
	onAnswer  func(*Exchange) bool
}

// Seen is one request or notification that reached the server.
type Seen struct {
	HTTP    string // the HTTP method
	Method  string
	ID      string // raw
	Header  http.Header
	Params  json.RawMessage
	Message json.RawMessage
}

// session is what the server keeps of a legacy session.
type session struct {
	id      string
	streams []*stream
	get     *stream // the newest standing GET stream, nil if there was none
	gets    []*stream
}

// New starts a server on loopback that ends with the test.
func New(t testing.TB, mode Mode) *Server {
	s := NewHandler(t, mode)
	s.web = httptest.NewUnstartedServer(s)
	s.web.Config.ConnState = s.connState
	s.web.Start()
	s.URL = s.web.URL + "/mcp"
	t.Cleanup(s.Close)
	return s
}

// NewHandler makes a server without a listener, to be served by the caller.
func NewHandler(t testing.TB, mode Mode) *Server {
	return &Server{
		mode: mode, t: t,
		methods: map[string]Behaviour{}, tools: map[string]Behaviour{}, schemas: map[string]string{},
		caps: `{"tools":{"listChanged":true},"logging":{},"resources":{"subscribe":true,"listChanged":true},"prompts":{"listChanged":true}}`,
		runs: map[string]int{}, sessions: map[string]*session{}, conns: map[net.Conn]http.ConnState{},
		waiting: map[string]chan json.RawMessage{}, closing: make(chan struct{}),
	}
}

// Close ends the server and everything it still does.
func (s *Server) Close() {
	s.mu.Lock()
	select {
	case <-s.closing:
	default:
		close(s.closing)
	}
	s.mu.Unlock()
	if s.web != nil {
		s.web.Close()
	}
}

// Tool says how a call of this tool is treated.
func (s *Server) Tool(name string, b Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tools[name] = b
}

// Schema gives a tool an input schema other than {"type":"object"}.
func (s *Server) Schema(tool, schema string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.schemas[tool] = schema
}

// On says how a method is treated; "GET" and "DELETE" are those of HTTP.
func (s *Server) On(method string, b Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.methods[method] = b
}

// OnAnswer says what to do with the answers that clients post. It reports whether
// the answer is to be taken; else it has replied itself.
func (s *Server) OnAnswer(f func(*Exchange) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onAnswer = f
}

// Capabilities replaces what the server declares.
func (s *Server) Capabilities(json string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.caps = json
}

// Become turns the server into one of another mode, as an upgrade would.
func (s *Server) Become(m Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
	s.sessions = map[string]*session{}
}

// ReplayAll makes a resumed stream carry the events of all streams, as
// server-everything does (protocol.md C 9).
func (s *Server) ReplayAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replayAll = true
}

// ReplayOnly makes a resumed stream carry what was said before and nothing new,
// as server-everything does too.
func (s *Server) ReplayOnly() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = true
}

// LateHeads makes a resumed stream begin with its first event, as the Go SDK does.
func (s *Server) LateHeads() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lateHeads = true
}

// LoseSessions forgets all sessions, as a restart would.
func (s *Server) LoseSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = map[string]*session{}
}

// Runs is how often a tool began with the argument "key" of this value.
func (s *Server) Runs(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs[key]
}

// Seen lists what has been received with this JSON-RPC method, or of this HTTP
// method ("GET", "DELETE").
func (s *Server) Seen(method string) []Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Seen
	for _, x := range s.seen {
		if x.Method == method || x.Method == "" && x.HTTP == method {
			out = append(out, x)
		}
	}
	return out
}

// Sessions counts the sessions that were opened, deleted by a client, and are
// still there.
func (s *Server) Sessions() (opened, deleted, left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened, s.deleted, len(s.sessions)
}

// Conns counts the connections that are open, and those of them that serve a
// request.
func (s *Server) Conns() (open, active int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.conns {
		if st == http.StateActive {
			active++
		}
	}
	return len(s.conns), active
}

// Dialled is how many connections were ever made.
func (s *Server) Dialled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dialled
}

// CutIdle closes the connections that serve no request.
func (s *Server) CutIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, st := range s.conns {
		if st == http.StateIdle {
			_ = c.Close()
		}
	}
}

func (s *Server) connState(c net.Conn, st http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st == http.StateNew {
		s.dialled++
	}
	if st == http.StateClosed || st == http.StateHijacked {
		delete(s.conns, c)
		return
	}
	s.conns[c] = st
}

// message is the envelope, read leniently.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &Exchange{s: s, W: w, R: r}
	x.body, _ = io.ReadAll(r.Body)
	var m message
	_ = json.Unmarshal(x.body, &m)
	x.ID, x.Method, x.Params = m.ID, m.Method, m.Params
	s.record(x)
	if r.Method == http.MethodPost && m.Method == "" && m.ID != nil {
		s.answered(x, m)
		return
	}
	s.behaviour(x)(x)
}

func (s *Server) record(x *Exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, Seen{
		HTTP: x.R.Method, Method: x.Method, ID: string(x.ID), Header: x.R.Header.Clone(),
		Params: x.Params, Message: x.body,
	})
}

// answered takes the client's answer to a request of the server.
func (s *Server) answered(x *Exchange, m message) {
	s.mu.Lock()
	f := s.onAnswer
	s.mu.Unlock()
	if f != nil && !f(x) {
		return
	}
	s.mu.Lock()
	ch := s.waiting[string(m.ID)]
	delete(s.waiting, string(m.ID))
	s.mu.Unlock()
	if ch != nil {
		ch <- json.RawMessage(x.body)
	}
	x.W.WriteHeader(http.StatusAccepted)
}

// behaviour looks up what to do with a request.
func (s *Server) behaviour(x *Exchange) Behaviour {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := x.Method
	if name == "" {
		name = x.R.Method
	}
	if b := s.methods[name]; b != nil {
		return b
	}
	if b := s.refuse(x); b != nil {
		return b
	}
	if name == "tools/call" {
		var p struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(x.Params, &p)
		if b := s.tools[p.Name]; b != nil {
			return b
		}
		return RPCError(200, -32602, "unknown tool", "")
	}
	return s.standard(name)
}

// nextID makes a session or stream name.
func (s *Server) nextID(prefix string) string {
	s.serial++
	return prefix + strconv.Itoa(s.serial)
}

// toolNames are the tools in a stable order.
func (s *Server) toolNames() []string {
	names := make([]string, 0, len(s.tools))
	for n := range s.tools {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
