package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"taskgate/internal/mcp"
)

// upstream is an ordinary MCP server of protocol version 2025-11-25: it has
// sessions, its calls block until they are done, and it knows nothing of tasks. It
// counts how often each call is executed.
type upstream struct {
	url    string
	rounds *rounds       // the modern one beside it, if there is one
	tells  bool          // it says something outside of calls, on GET streams
	held   chan struct{} // no call is answered before it is closed; nil for none

	mu       sync.Mutex
	sessions map[string]*upstreamSession
	runs     map[string]int    // executions, by call
	busy     map[string]int    // executions that have not ended, by call
	beside   []string          // calls that were begun while they were executed
	resumed  int               // streams that were picked up
	foreign  int               // of those, the ones whose last reader had not let go
	gone     int               // attempts to pick up what is not there
	cancels  int               // cancellations that reached a call
	asked    map[string]*asked // questions, by name
	strays   int               // answers to what was never asked
}

// upstreamSession is one session. A call belongs to it and ends with it.
type upstreamSession struct {
	ctx     context.Context
	end     context.CancelFunc
	streams map[string]*stream            // by id
	told    int                           // how much was said outside of calls
	listens bool                          // somebody hears it
	calls   map[string]context.CancelFunc // in flight, by JSON-RPC id
}

// startUpstream serves until the test ends.
func startUpstream(t *testing.T) *upstream {
	u := &upstream{sessions: map[string]*upstreamSession{}, runs: map[string]int{}, busy: map[string]int{}, asked: map[string]*asked{}}
	u.url = "http://" + serve(t, http.HandlerFunc(u.serve)) + "/mcp"
	t.Cleanup(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		for _, s := range u.sessions {
			s.end()
		}
	})
	return u
}

// serve serves a handler at an address until the test ends.
func serve(t *testing.T, h http.Handler) (addr string) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.Listener.Addr().String()
}

// executions is how often a call was begun, at the one or the other.
func (u *upstream) executions(id string) int {
	n := 0
	if u.rounds != nil {
		u.rounds.mu.Lock()
		defer u.rounds.mu.Unlock()
		n = u.rounds.runs[id]
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return n + u.runs[id]
}

// message is a JSON-RPC message of the gateway.
type message struct {
	ID     json.RawMessage
	Method string
	Result json.RawMessage
	Params struct {
		Name      string
		RequestID json.RawMessage
		Arguments struct {
			Call    string
			Takes   int64
			Outcome string
			Asks    []int
		}
		RequestState   string
		InputResponses map[string]json.RawMessage
		Meta           struct {
			ProgressToken json.RawMessage
		} `json:"_meta"`
	}
}

func (u *upstream) serve(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(mcp.HeaderSession)
	u.mu.Lock()
	s := u.sessions[id]
	u.mu.Unlock()
	if id != "" && s == nil {
		http.Error(w, "no such session", http.StatusNotFound)
		return
	}
	switch r.Method {
	case http.MethodPost:
		u.post(w, r, s)
	case http.MethodGet:
		u.resume(w, r, s)
	case http.MethodDelete:
		u.mu.Lock()
		delete(u.sessions, id)
		u.mu.Unlock()
		s.end()
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (u *upstream) post(w http.ResponseWriter, r *http.Request, s *upstreamSession) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	switch {
	case m.Method == mcp.MethodInitialize:
		w.Header().Set(mcp.HeaderSession, u.begin())
		capabilities := `{"tools":{}}`
		if u.tells {
			capabilities = `{"tools":{},"logging":{}}`
		}
		answer(w, m.ID, `"result":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`,"serverInfo":{"name":"chaos","version":"1"}}`)
	case m.Method == mcp.MethodDiscover:
		answer(w, m.ID, `"error":{"code":-32601,"message":"no such method"}`)
	case s == nil:
		http.Error(w, "a session is needed", http.StatusBadRequest)
	case m.Method == "":
		u.responded(m)
		w.WriteHeader(http.StatusAccepted)
	case m.ID == nil:
		u.notified(s, m)
		w.WriteHeader(http.StatusAccepted)
	case m.Method == mcp.MethodToolsList:
		answer(w, m.ID, `"result":`+toolList())
	case m.Method == mcp.MethodToolsCall:
		u.callTool(w, r, s, m)
	default:
		answer(w, m.ID, `"error":{"code":-32601,"message":"no such method"}`)
	}
}

// begin makes a session.
func (u *upstream) begin() string {
	s := &upstreamSession{streams: map[string]*stream{}, calls: map[string]context.CancelFunc{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	id := uuid.NewString()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sessions[id] = s
	return id
}

// notified takes a notification: a cancellation ends its call.
func (u *upstream) notified(s *upstreamSession, m message) {
	if m.Method != mcp.NotifyCancelled {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if end := s.calls[string(m.Params.RequestID)]; end != nil {
		end()
		u.cancels++
	}
}

// callTool executes a call. As with most servers of this age, it goes on when the
// connection breaks.
func (u *upstream) callTool(w http.ResponseWriter, r *http.Request, s *upstreamSession, m message) {
	ctx, end := context.WithCancel(s.ctx)
	u.mu.Lock()
	call := m.Params.Arguments.Call
	if u.busy[call] > 0 {
		u.beside = append(u.beside, call)
	}
	u.runs[call]++
	u.busy[call]++
	s.calls[string(m.ID)] = end
	u.mu.Unlock()
	t := toolOf(m.Params.Name)
	finished := func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.busy[call]--
		delete(s.calls, string(m.ID))
		end()
	}
	takes := time.Duration(m.Params.Arguments.Takes) * time.Millisecond
	if t.stream {
		st := u.newStream(s)
		go func() {
			defer finished()
			u.work(ctx, st, m, takes)
		}()
		st.follow(w, r, 0)
		return
	}
	defer finished()
	if !wait(ctx, takes) || !u.letGo(ctx) {
		return // who cancels a call does not want its answer
	}
	answer(w, m.ID, outcome(m, nil))
}

// letGo waits until calls may be answered, and reports whether ctx lasted that long.
func (u *upstream) letGo(ctx context.Context) bool {
	if u.held == nil {
		return true
	}
	select {
	case <-u.held:
		return true
	case <-ctx.Done():
		return false
	}
}

// outcome is the member that answers a call.
func outcome(m message, answers []string) string {
	a := m.Params.Arguments
	if a.Outcome == rpcError {
		return fmt.Sprintf(`"error":{"code":%d,"message":%q}`, codeWrong, a.Call+" went wrong")
	}
	return `"result":` + string(result(a.Call, a.Outcome, answers))
}

func answer(w http.ResponseWriter, id json.RawMessage, member string) {
	w.Header().Set("Content-Type", mcp.TypeJSON)
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, id, member)
}

func toolList() string {
	var list []map[string]any
	for _, t := range tools {
		list = append(list, map[string]any{"name": t.name, "inputSchema": map[string]any{"type": "object"}})
	}
	b, _ := json.Marshal(map[string]any{"tools": list}) // strings only: cannot fail
	return string(b)
}

// unquote reads a JSON string.
func unquote(raw json.RawMessage) (string, error) {
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// wait pauses for d and reports whether ctx lasted that long.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
