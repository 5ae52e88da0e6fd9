package sim

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// jobs are what the job tools of a server tell of. They outlive its connections, and its death.
type jobs struct {
	j    *Judge
	host string

	mu    sync.Mutex
	jobs  map[string]*serverJob
	asked int // of all
}

// serverJob is one of them. jobs.mu guards what follows call.
type serverJob struct {
	id      string
	call    *Call
	made    time.Time
	length  time.Duration
	state   string
	content string // of its result
}

// jobTools are the job tools, as they are listed.
const jobTools = `{"name":"start_once","inputSchema":{"type":"object"}},{"name":"start_again","inputSchema":{"type":"object"}},` +
	`{"name":"job_status","inputSchema":{"type":"object"}},{"name":"job_result","inputSchema":{"type":"object"}},{"name":"cancel_job","inputSchema":{"type":"object"}}`

func newJobs(j *Judge, host string) *jobs {
	return &jobs{j: j, host: host, jobs: map[string]*serverJob{}}
}

// serve answers a call of a job tool, and reports whether it is one.
func (s *jobs) serve(w http.ResponseWriter, r *http.Request, m callMessage) bool {
	switch tool := m.Params.Name; {
	case m.Method != "tools/call":
		return false
	case strings.HasPrefix(tool, "start_"):
		s.start(w, r, m)
	case tool == "job_status", tool == "job_result", tool == "cancel_job":
		s.tell(w, r, m)
	default:
		return false
	}
	return true
}

// start starts a job, and answers with its id.
func (s *jobs) start(w http.ResponseWriter, r *http.Request, m callMessage) {
	args := m.Params.Arguments
	c := s.j.find(args.Token)
	if c == nil {
		http.Error(w, "nobody made this call", http.StatusBadRequest)
		return
	}
	select {
	case <-time.After(time.Duration(args.MS) * time.Millisecond / 10):
	case <-r.Context().Done():
		c.Note(s.host, "is left before it has started a job")
		return
	}
	content, run := c.Execute(s.host, func(run int) string { return spellContent(args.Token, "", run) })
	made := &serverJob{id: fmt.Sprintf("job-%s-%d", args.Token, run), call: c, made: time.Now(), state: "running", content: content}
	made.length = time.Duration(args.MS) * time.Millisecond
	s.mu.Lock()
	s.jobs[made.id] = made
	s.mu.Unlock()
	time.AfterFunc(made.length, func() { s.end(made, "done") })
	writeJSON(w, m.ID, fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":"started"}],"structuredContent":{"job":"%s"}}`, made.id))
}

// end ends a job, unless it has ended.
func (s *jobs) end(made *serverJob, state string) {
	s.mu.Lock()
	ended := made.state == "running"
	if ended {
		made.state = state
	}
	s.mu.Unlock()
	if ended {
		made.call.EndJob(s.host, made.id, state)
	}
}

// tell answers a call about a job. Some answers say nothing of it.
func (s *jobs) tell(w http.ResponseWriter, r *http.Request, m callMessage) {
	s.mu.Lock()
	made := s.jobs[m.Params.Arguments.Job]
	s.asked++
	busy := s.asked%9 == 0
	s.mu.Unlock()
	switch {
	case made == nil:
		s.j.Blame("%s was asked for the job %q, which it never started", s.host, m.Params.Arguments.Job)
		writeJSON(w, m.ID, `{"resultType":"complete","content":[{"type":"text","text":"no such job"}],"isError":true}`)
		return
	case m.Params.Name == "cancel_job":
		s.end(made, "stopped")
	default:
		made.call.AskForJob(s.host, made.id, peerOf(r), m.Params.Name)
	}
	s.mu.Lock()
	state, part := made.state, min(100, 100*time.Since(made.made)/max(made.length, 1))
	s.mu.Unlock()
	switch {
	case busy && m.Params.Name == "job_result":
		http.Error(w, "too busy to look", http.StatusServiceUnavailable)
	case busy && m.Params.Name == "job_status":
		writeJSON(w, m.ID, `{"resultType":"complete","content":[{"type":"text","text":"too busy to look"}],"isError":true}`)
	case m.Params.Name == "job_result" && state != "done":
		made.call.Blame("%s is asked for the result of the job %s, which is %s", s.host, made.id, state)
		writeJSON(w, m.ID, `{"resultType":"complete","content":[],"isError":true}`)
	case m.Params.Name == "job_result":
		writeJSON(w, m.ID, `{"resultType":"complete","content":`+made.content+`}`)
	default:
		writeJSON(w, m.ID, fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":"{\"state\":\"%s\",\"percent\":%d,\"detail\":\"%s is %s\"}"}]}`, state, part, made.id, state))
	}
}

// peer is the key of a context for the host that a request comes from.
type peer struct{}

// knowPeer has the requests of a connection know the host that they come from.
func knowPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peer{}, c.(*conn).in.from)
}

// peerOf is the host that a request comes from.
func peerOf(r *http.Request) string {
	host, _ := r.Context().Value(peer{}).(string)
	return host
}
