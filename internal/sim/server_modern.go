package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// modernHost is the name of the host of the modern server.
const modernHost = "modern"

// modernServer is an MCP server of 2026-07-28. One of its tools asks for a word, and gives it back;
// another one makes a task, and others start a job and tell of it.
type modernServer struct {
	j     *Judge
	tasks *ownTasks
	jobs  *jobs
}

// ServeHTTP implements http.Handler.
func (s *modernServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	var m callMessage
	b, err := io.ReadAll(r.Body)
	switch {
	case err != nil || json.Unmarshal(b, &m) != nil:
		http.Error(w, "no JSON", http.StatusBadRequest)
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == "server/discover":
		writeJSON(w, m.ID, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"serverInfo":{"name":"modern","version":"1"},"ttlMs":0,"cacheScope":"private"}`)
	case m.Method == "tools/list":
		writeJSON(w, m.ID, `{"resultType":"complete","tools":[{"name":"ask","inputSchema":{"type":"object"}},{"name":"own","inputSchema":{"type":"object"}},`+jobTools+`],"ttlMs":0,"cacheScope":"private"}`)
	case m.Method == "tools/call" && m.Params.Name == "own":
		s.tasks.begin(w, m, true)
	case strings.HasPrefix(m.Method, "tasks/"):
		s.tasks.serve(w, r, m, true)
	case s.jobs.serve(w, r, m):
	case m.Method == "tools/call":
		s.call(w, r, m)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown method"}}`, m.ID)
	}
}

func (s *modernServer) call(w http.ResponseWriter, r *http.Request, m callMessage) {
	args := m.Params.Arguments
	c := s.j.find(args.Token)
	if c == nil {
		http.Error(w, "nobody made this call", http.StatusBadRequest)
		return
	}
	select {
	case <-time.After(time.Duration(args.MS) * time.Millisecond):
	case <-r.Context().Done():
		c.Note(modernHost, "is left")
		return
	}
	asked, word := 0, ""
	if len(m.Params.InputResponses) > 0 {
		number, ofCall := strings.CutPrefix(m.Params.RequestState, "st-"+args.Token+"-")
		if asked, _ = strconv.Atoi(number); !ofCall || asked == 0 {
			c.Blame("the server got the state %q back", m.Params.RequestState)
		}
		question := "q" + number
		word = m.Params.InputResponses[question].Content.Word
		c.Answer(modernHost, question, word)
	}
	if asked < args.Notes {
		asked++
		c.Note(modernHost, "asks for the %d. time", asked)
		writeJSON(w, m.ID, fmt.Sprintf(`{"resultType":"input_required","inputRequests":{"q%d":{"method":"elicitation/create","params":{"mode":"form","message":"word for %s","requestedSchema":{"type":"object","properties":{"word":{"type":"string"}}}}}},"requestState":"st-%s-%d"}`, asked, args.Token, args.Token, asked))
		return
	}
	content, _ := c.Execute(modernHost, func(run int) string { return spellContent(args.Token, word, run) })
	writeJSON(w, m.ID, `{"resultType":"complete","content":`+content+`}`)
}
