package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// legacyHost is the name of the host of the legacy server.
const legacyHost = "legacy"

// legacyServer is an MCP server of 2025-11-25 with sessions. Its tools work for as long as they are told, and say what
// they do. The answers of "stream" can be resumed.
type legacyServer struct {
	j     *Judge
	tasks *ownTasks
	jobs  *jobs

	mu       sync.Mutex
	sessions map[string]bool
	streams  map[string]*answerStream // those that can be resumed, by name
	asked    map[string]chan string   // the words that answer questions, by the id of the question
	serial   int
}

// answerStream is the answer to a call. It goes on without its client.
type answerStream struct {
	name string

	mu      sync.Mutex
	events  []string
	over    bool
	changed chan struct{}
}

func newLegacyServer(j *Judge) *legacyServer {
	return &legacyServer{j: j, tasks: newOwnTasks(j, legacyHost), jobs: newJobs(j, legacyHost), sessions: map[string]bool{}, streams: map[string]*answerStream{}, asked: map[string]chan string{}}
}

// workArgs are the arguments of all tools.
type workArgs struct {
	Token string `json:"token"`
	MS    int    `json:"ms"`
	Notes int    `json:"notes"` // messages that it sends while it works
	Pad   int    `json:"pad"`   // how many bytes each of them has besides
	Job   string `json:"job"`   // the one that a job tool is asked for
}

// callMessage is what a server has to know of a message.
type callMessage struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Name           string
		TaskID         string
		Task           json.RawMessage
		Arguments      workArgs
		RequestState   string
		InputResponses map[string]struct{ Content struct{ Word string } }
		Meta           struct{ ProgressToken json.RawMessage } `json:"_meta"`
	}
	Result struct{ Content struct{ Word string } }
}

// Sessions returns how many sessions are open.
func (s *legacyServer) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

// forgetSessions has the server forget all sessions, as one that was started again.
func (s *legacyServer) forgetSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.sessions)
	clear(s.streams)
}

// ServeHTTP implements http.Handler.
func (s *legacyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("Mcp-Session-Id")
	s.mu.Lock()
	known := s.sessions[id]
	s.mu.Unlock()
	switch {
	case id != "" && !known:
		http.Error(w, "no such session", http.StatusNotFound)
	case r.Method == http.MethodDelete:
		s.mu.Lock()
		delete(s.sessions, id)
		s.mu.Unlock()
	case r.Method == http.MethodGet:
		s.resume(w, r)
	case r.Method == http.MethodPost:
		s.post(w, r, id)
	}
}

func (s *legacyServer) post(w http.ResponseWriter, r *http.Request, session string) {
	var m callMessage
	b, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(b, &m) != nil {
		http.Error(w, "no JSON", http.StatusBadRequest)
		return
	}
	switch {
	case m.Method == "" && m.ID != nil:
		s.takeAnswer(m)
		w.WriteHeader(http.StatusAccepted)
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == "initialize":
		s.mu.Lock()
		s.serial++
		id := fmt.Sprintf("s%d", s.serial)
		s.sessions[id] = true
		s.mu.Unlock()
		w.Header().Set("Mcp-Session-Id", id)
		writeJSON(w, m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"logging":{},"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}},"serverInfo":{"name":"legacy","version":"1"}}`)
	case m.Method == "tools/list":
		writeJSON(w, m.ID, `{"tools":[{"name":"work","inputSchema":{"type":"object"}},{"name":"once","inputSchema":{"type":"object"}},{"name":"talk","inputSchema":{"type":"object"}},{"name":"stream","inputSchema":{"type":"object"}},{"name":"survey","inputSchema":{"type":"object"}},{"name":"own","inputSchema":{"type":"object"},"execution":{"taskSupport":"required"}},`+jobTools+`]}`)
	case m.Method == "tools/call" && m.Params.Task != nil:
		s.tasks.begin(w, m, false)
	case strings.HasPrefix(m.Method, "tasks/"):
		s.tasks.serve(w, r, m, false)
	case s.jobs.serve(w, r, m):
	case m.Method == "tools/call":
		s.call(w, r, m)
	case m.Method == "logging/setLevel", m.Method == "ping":
		writeJSON(w, m.ID, `{}`)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown method"}}`, m.ID)
	}
	_ = session
}

func writeJSON(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result) // the client may be gone
}

// spellContent is the content that an execution makes. No JSON library would write it so.
func spellContent(token, more string, run int) string {
	if len(token)%2 == 0 { // larger than what budgets leave out
		more += strings.Repeat(".", 6000)
	}
	return fmt.Sprintf(`[ {"text" : "done %s \u00e9\/%s", "type":"text","n":1.0e1} , {"type":"text","text":"run %d"}]`, token, more, run)
}

func (s *legacyServer) call(w http.ResponseWriter, r *http.Request, m callMessage) {
	args := m.Params.Arguments
	c := s.j.find(args.Token)
	if c == nil {
		http.Error(w, "nobody made this call", http.StatusBadRequest)
		return
	}
	content, _ := c.Execute(legacyHost, func(run int) string { return spellContent(args.Token, "", run) })
	last := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":%s}}`, m.ID, content)
	switch m.Params.Name {
	case "work", "once":
		select {
		case <-time.After(time.Duration(args.MS) * time.Millisecond):
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, last) // the client may be gone
		case <-r.Context().Done():
			c.Note(legacyHost, "is left")
		}
		return
	}
	s.mu.Lock()
	s.serial++
	a := &answerStream{name: fmt.Sprintf("a%d", s.serial), changed: make(chan struct{})}
	if m.Params.Name == "stream" {
		s.streams[a.name] = a
	}
	s.mu.Unlock()
	ctx := r.Context()
	if m.Params.Name == "stream" {
		ctx = context.Background() // it can be resumed
	}
	go s.speak(ctx, a, c, m, last)
	a.serve(w, r, 0, m.Params.Name == "stream")
}

// speak makes the messages of an answer: progress, notes, a question where it is a survey, and the result.
func (s *legacyServer) speak(ctx context.Context, a *answerStream, c *Call, m callMessage, last string) {
	args := m.Params.Arguments
	steps := args.Notes + 1
	for i := range steps {
		select {
		case <-time.After(time.Duration(args.MS/steps) * time.Millisecond):
		case <-ctx.Done():
			c.Note(legacyHost, "is left")
			a.add("", true)
			return
		}
		if i == args.Notes {
			break
		}
		if token := m.Params.Meta.ProgressToken; token != nil {
			a.add(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"message":"%s at %d"}}`, token, i+1, args.Token, i+1), false)
		}
		a.add(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"warning","data":{"note":%d,"of":"%s","pad":"%s"}}}`, i+1, args.Token, strings.Repeat("-", args.Pad)), false)
	}
	if m.Params.Name == "survey" && !s.ask(ctx, a, c) {
		a.add("", true)
		return
	}
	a.add(last, true)
}

// ask asks for a word, and reports whether it has come.
func (s *legacyServer) ask(ctx context.Context, a *answerStream, c *Call) bool {
	id := "q-" + c.token + "-" + a.name
	answer := make(chan string, 1)
	s.mu.Lock()
	s.asked[id] = answer
	s.mu.Unlock()
	c.Note(legacyHost, "asks %s", id)
	a.add(fmt.Sprintf(`{"jsonrpc":"2.0","id":"%s","method":"elicitation/create","params":{"mode":"form","message":"word for %s","requestedSchema":{"type":"object","properties":{"word":{"type":"string"}}}}}`, id, c.token), false)
	select {
	case word := <-answer:
		c.Answer(legacyHost, id, word)
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *legacyServer) takeAnswer(m callMessage) {
	var id string
	_ = json.Unmarshal(m.ID, &id) // an id that nobody gave has no question
	s.mu.Lock()
	answer := s.asked[id]
	if answer != nil {
		s.asked[id] = taken
	}
	s.mu.Unlock()
	if answer == nil {
		return
	}
	select {
	case answer <- m.Result.Content.Word:
	default:
		s.j.find(strings.Split(id, "-")[1]).Repeat(legacyHost, id)
	}
}

// taken is in place of the channel for an answer that has come.
var taken = make(chan string)

// add adds a message; "" is none.
func (a *answerStream) add(message string, over bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if message != "" {
		a.events = append(a.events, message)
	}
	a.over = over
	close(a.changed)
	a.changed = make(chan struct{})
}

// serve sends the messages behind the first ones.
func (a *answerStream) serve(w http.ResponseWriter, r *http.Request, from int, ids bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	if ids && from == 0 {
		_, _ = fmt.Fprintf(w, "id: %s.0\ndata: \n\n", a.name) // the client may be gone
	}
	for {
		_ = http.NewResponseController(w).Flush() // the same
		a.mu.Lock()
		more, over, changed := a.events[from:], a.over, a.changed
		a.mu.Unlock()
		for _, e := range more {
			from++
			if ids {
				_, _ = fmt.Fprintf(w, "id: %s.%d\n", a.name, from)
			}
			_, _ = fmt.Fprintf(w, "data: %s\n\n", e)
		}
		if over && len(more) == 0 {
			return
		}
		if len(more) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func (s *legacyServer) resume(w http.ResponseWriter, r *http.Request) {
	name, number, _ := strings.Cut(r.Header.Get("Last-Event-ID"), ".")
	from, _ := strconv.Atoi(number)
	s.mu.Lock()
	a := s.streams[name]
	s.mu.Unlock()
	if a == nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	a.serve(w, r, from, true)
}
