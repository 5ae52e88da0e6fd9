package sim

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// ownTasks are the tasks that a server keeps itself. They outlive its connections, and its death.
type ownTasks struct {
	j    *Judge
	host string

	mu     sync.Mutex
	tasks  map[string]*ownTask
	serial int
}

// ownTask is one of them. ownTasks.mu guards what follows id.
type ownTask struct {
	id      string
	made    time.Time
	status  string
	content string        // of its result, once it is completed
	ended   chan struct{} // closed at its end
}

func newOwnTasks(j *Judge, host string) *ownTasks {
	return &ownTasks{j: j, host: host, tasks: map[string]*ownTask{}}
}

// begin makes a task of a call, and answers with it.
func (o *ownTasks) begin(w http.ResponseWriter, m callMessage, modern bool) {
	args := m.Params.Arguments
	c := o.j.find(args.Token)
	if c == nil {
		http.Error(w, "nobody made this call", http.StatusBadRequest)
		return
	}
	content, _ := c.Execute(o.host, func(run int) string { return spellContent(args.Token, "", run) })
	o.mu.Lock()
	defer o.mu.Unlock()
	o.serial++
	t := &ownTask{id: fmt.Sprintf("own-%s-%d", args.Token, o.serial), made: time.Now(), status: "working", ended: make(chan struct{})}
	o.tasks[t.id] = t
	time.AfterFunc(time.Duration(args.MS)*time.Millisecond, func() { o.end(t, "completed", content) })
	if modern {
		writeJSON(w, m.ID, `{"resultType":"task",`+t.spell(modern)+`}`)
		return
	}
	writeJSON(w, m.ID, `{"task":{`+t.spell(modern)+`}}`)
}

// end ends a task, unless it has ended.
func (o *ownTasks) end(t *ownTask, status, content string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if t.status == "working" {
		t.status, t.content = status, content
		close(t.ended)
	}
}

// spell spells the members of a task. ownTasks.mu is held.
func (t *ownTask) spell(modern bool) string {
	ttl, interval := "ttl", "pollInterval"
	if modern {
		ttl, interval = "ttlMs", "pollIntervalMs"
	}
	at := t.made.UTC().Format(time.RFC3339)
	return fmt.Sprintf(`"taskId":"%s","status":"%s","createdAt":"%s","lastUpdatedAt":"%s","%s":600000,"%s":500`, t.id, t.status, at, at, ttl, interval)
}

// serve answers a request about a task.
func (o *ownTasks) serve(w http.ResponseWriter, r *http.Request, m callMessage, modern bool) {
	o.mu.Lock()
	t := o.tasks[m.Params.TaskID]
	o.mu.Unlock()
	if t == nil {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"unknown task"}}`, m.ID)
		return
	}
	switch m.Method {
	case "tasks/cancel":
		o.end(t, "cancelled", "")
	case "tasks/result":
		select {
		case <-t.ended:
		case <-r.Context().Done():
			return
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case m.Method == "tasks/result":
		writeJSON(w, m.ID, fmt.Sprintf(`{"content":%s,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"%s"}}}`, t.content, t.id))
	case !modern:
		writeJSON(w, m.ID, `{`+t.spell(modern)+`}`)
	case m.Method == "tasks/cancel":
		writeJSON(w, m.ID, `{"resultType":"complete"}`)
	case t.status == "completed":
		writeJSON(w, m.ID, `{"resultType":"complete",`+t.spell(modern)+`,"result":{"content":`+t.content+`}}`)
	default:
		writeJSON(w, m.ID, `{"resultType":"complete",`+t.spell(modern)+`}`)
	}
}
