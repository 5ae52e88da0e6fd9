package fake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Versions of the modes, and the codes that go with them.
func (m Mode) version() string {
	switch m {
	case Modern, Both, BothUnlisted:
		return "2026-07-28"
	}
	return "2025-11-25"
}

func (m Mode) modern() bool { return m == Modern }

// of is the mode in which a server treats a request: one of both eras is what the request
// takes it for.
func (m Mode) of(x *Exchange) Mode {
	if m != Both && m != BothUnlisted {
		return m
	}
	if modernVersion(x) != "" || x.R.Header.Get("Mcp-Protocol-Version") == m.version() {
		return Modern
	}
	return Stateful
}

// modernVersion is the version that the metadata of a request name, "" for none.
func modernVersion(x *Exchange) (version string) {
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(x.Params, &p)
	_ = json.Unmarshal(p.Meta["io.modelcontextprotocol/protocolVersion"], &version)
	return version
}

// refuse is the behaviour towards a request that does not fit the mode, nil for
// one that does. Called with s.mu held.
func (s *Server) refuse(x *Exchange) Behaviour {
	mode := s.mode.of(x)
	switch {
	case mode.modern():
		return s.refuseModern(x)
	case x.Method == "server/discover":
		if mode == Stateful {
			return Status(http.StatusBadRequest, "text/plain", "Bad Request: no session")
		}
		return RPCError(200, -32601, "method not found", "")
	case x.Method == "initialize":
		return nil
	case mode == Stateless && x.R.Method != http.MethodPost:
		return Status(http.StatusMethodNotAllowed, "text/plain", "")
	case mode == Stateless:
		return nil
	}
	x.session = s.sessions[x.R.Header.Get("Mcp-Session-Id")]
	if x.session == nil || x.R.Header.Get("Cookie") != "node="+x.session.id { // a balancer sends it to another node
		return Status(http.StatusNotFound, "text/plain", "session not found")
	}
	return nil
}

func (s *Server) refuseModern(x *Exchange) Behaviour {
	if x.R.Method != http.MethodPost {
		return Status(http.StatusMethodNotAllowed, "text/plain", "")
	}
	version := modernVersion(x)
	switch {
	case version == "":
		return RPCError(400, -32602, "no protocol version", "")
	case version != x.R.Header.Get("Mcp-Protocol-Version"), x.Method != x.R.Header.Get("Mcp-Method"):
		return RPCError(400, -32020, "headers and body differ", "")
	case version != s.mode.version():
		return RPCError(400, -32022, "unsupported version", fmt.Sprintf(`{"supported":[%q],"requested":%q}`, s.mode.version(), version))
	}
	return nil
}

// standard is how a method is served where nobody said otherwise. Called with
// s.mu held.
func (s *Server) standard(method string) Behaviour {
	switch method {
	case "server/discover":
		versions := strconv.Quote(s.mode.version())
		if s.mode == Both {
			versions += `,"2025-11-25"`
		}
		return Result(fmt.Sprintf(`{"resultType":"complete","supportedVersions":[%s],"capabilities":%s,"instructions":"be kind","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"fake","version":"1"}}}`, versions, s.caps))
	case "initialize":
		return s.initialize
	case "tools/list":
		return Result(s.list())
	case "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		return Result(`{}`)
	case "GET":
		return s.get
	case "DELETE":
		return s.deleteSession
	}
	if strings.HasPrefix(method, "notifications/") {
		return Status(http.StatusAccepted, "", "")
	}
	return RPCError(404, -32601, "method not found", "")
}

func (s *Server) list() string {
	var b strings.Builder
	b.WriteString(`{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[`)
	for i, name := range s.toolNames() {
		schema := s.schemas[name]
		if schema == "" {
			schema = `{"type":"object"}`
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":%q,"inputSchema":%s}`, name, schema)
	}
	return b.String() + "]}"
}

func (s *Server) initialize(x *Exchange) {
	s.mu.Lock()
	if s.mode.of(x) == Stateful {
		id := s.nextID("session-")
		s.sessions[id] = &session{id: id}
		x.W.Header().Set("Mcp-Session-Id", id)
		x.W.Header().Set("Set-Cookie", "node="+id+"; Path=/")
	}
	s.opened++
	caps := s.caps
	s.mu.Unlock()
	Result(`{"protocolVersion":"2025-11-25","capabilities":` + caps + `,"serverInfo":{"name":"fake","version":"1"},"instructions":"be kind"}`)(x)
}

func (s *Server) deleteSession(x *Exchange) {
	s.mu.Lock()
	delete(s.sessions, x.session.id)
	s.deleted++
	s.mu.Unlock()
	x.W.WriteHeader(http.StatusNoContent)
}

// get serves the standing stream of a session, or resumes another one.
func (s *Server) get(x *Exchange) {
	last := x.R.Header.Get("Last-Event-ID")
	if last != "" {
		s.resume(x, last)
		return
	}
	st := s.newStream(x.session)
	s.mu.Lock()
	x.session.get = st
	x.session.gets = append(x.session.gets, st)
	s.mu.Unlock()
	x.Head("text/event-stream")
	st.follow(x, 0)
}

// resume replays what came after an event, of its stream or of all.
func (s *Server) resume(x *Exchange, last string) {
	s.mu.Lock()
	all, deaf, late := s.replayAll, s.deaf, s.lateHeads
	streams := x.session.streams
	s.mu.Unlock()
	for _, st := range streams {
		if n, ok := st.after(last); ok {
			x.headed = true
			x.W.Header().Set("Content-Type", "text/event-stream")
			if !late {
				x.flush()
			}
			if all {
				for _, other := range streams {
					if other != st {
						other.replay(x, 0)
					}
				}
			}
			if deaf {
				st.replay(x, n)
				x.Hang()
				return
			}
			st.follow(x, n)
			return
		}
	}
	Status(http.StatusBadRequest, "text/plain", "unknown event id")(x)
}

// Notify sends a notification on the GET streams of all sessions.
func (s *Server) Notify(method, params string) {
	s.OnGET(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params))
}

// Request sends a request on the GET streams of all sessions and returns the
// first answer.
func (s *Server) Request(id, method, params string) json.RawMessage {
	ch := s.expect(id)
	s.OnGET(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	select {
	case b := <-ch:
		return b
	case <-s.closing:
		return nil
	}
}

// Listeners is how many GET streams are open.
func (s *Server) Listeners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, ses := range s.sessions {
		if ses.get != nil && ses.get.readers() > 0 {
			n++
		}
	}
	return n
}

// CutListeners ends all GET streams.
func (s *Server) CutListeners() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.sessions {
		if ses.get != nil {
			ses.get.end()
		}
	}
}

// OnGET says something on the GET streams of all sessions.
func (s *Server) OnGET(data string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ses := range s.sessions {
		if st := ses.listening(); st != nil {
			st.add("", data)
		}
	}
}

// listening is the GET stream that somebody reads, the newest of several, or else the
// last there was. Server.mu is held.
func (ses *session) listening() *stream {
	for i := len(ses.gets) - 1; i >= 0; i-- {
		if ses.gets[i].readers() > 0 {
			return ses.gets[i]
		}
	}
	return ses.get
}

func (s *Server) expect(id string) chan json.RawMessage {
	ch := make(chan json.RawMessage, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[id] = ch
	return ch
}
