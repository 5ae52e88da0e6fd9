package fake

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
)

// Tasks has a server run tools as tasks of its own. Tasks outlive sessions.
type Tasks struct {
	s *Server

	mu   sync.Mutex
	jobs []*Job
	made int
}

// Job is one task of the server, in the hands of a script.
type Job struct {
	ID     string
	Params json.RawMessage // of the tools/call

	s *Server

	mu       sync.Mutex
	change   chan struct{}
	status   string
	message  string
	outcome  func(x *Exchange) string // the response to tasks/result, once it has ended
	blocks   []string                 // of the result
	requests []string                 // for the next stream of tasks/result

	// Of a modern server.
	inlined, failure string // once it has ended
	open             []input
	wants            string // members that every state of it has, such as "ttlMs":null
}

// TaskTool is a tool that is run as a task.
type TaskTool struct {
	Name    string
	Support string     // execution.taskSupport
	First   func(*Job) // runs before the call is answered; may be nil
	Script  func(*Job)
}

// Tasks declares these capabilities (the member tasks of ServerCapabilities) and serves
// the tools.
func (s *Server) Tasks(capability string, tools ...TaskTool) *Tasks {
	t := &Tasks{s: s}
	s.Capabilities(`{"tools":{"listChanged":true},"logging":{},"tasks":` + capability + `}`)
	var list []string
	for _, tool := range tools {
		list = append(list, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"},"execution":{"taskSupport":%q}}`, tool.Name, tool.Support))
		s.Tool(tool.Name, t.call(tool))
	}
	s.On("tools/list", Result(`{"tools":[`+strings.Join(list, ",")+`]}`))
	s.On("tasks/get", t.of((*Job).get))
	s.On("tasks/result", t.of((*Job).result))
	s.On("tasks/cancel", t.of((*Job).cancel))
	return t
}

// Jobs are the tasks that were made.
func (t *Tasks) Jobs() []*Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*Job(nil), t.jobs...)
}

// call answers a tools/call: plainly where no task was asked for (a tool that needs one
// refuses, L4), else with a task whose script begins.
func (t *Tasks) call(tool TaskTool) Behaviour {
	return func(x *Exchange) {
		var p struct {
			Task *struct{} `json:"task"`
		}
		_ = json.Unmarshal(x.Params, &p)
		if p.Task == nil {
			if tool.Support == "required" {
				RPCError(200, -32601, "tool needs a task", "")(x)
				return
			}
			Text("plain")(x)
			return
		}
		x.Run()
		j := t.add(x.Params)
		if tool.First != nil {
			tool.First(j)
		}
		go tool.Script(j)
		x.Head("application/json")
		x.write(x.Result(`{"task":` + j.state() + `}`))
	}
}

// add makes a task: job-1 is the first.
func (t *Tasks) add(params json.RawMessage) *Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.made++
	j := &Job{s: t.s, ID: fmt.Sprint("job-", t.made), Params: params, status: "working", change: make(chan struct{}), wants: `"ttlMs":60000,"pollIntervalMs":200`}
	t.jobs = append(t.jobs, j)
	return j
}

// of finds the task that a request names.
func (t *Tasks) of(serve func(*Job, *Exchange)) Behaviour {
	return func(x *Exchange) {
		var p struct {
			ID string `json:"taskId"`
		}
		_ = json.Unmarshal(x.Params, &p)
		for _, j := range t.Jobs() {
			if j.ID == p.ID {
				serve(j, x)
				return
			}
		}
		RPCError(200, -32602, "unknown task", "")(x)
	}
}

// Forget drops all tasks, as a server does whose ttl is over.
func (t *Tasks) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.jobs = nil
}

// set changes the job and wakes who waits for it.
func (j *Job) set(change func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change()
	close(j.change)
	j.change = make(chan struct{})
}

// until waits until something is so; false if the exchange, if any, or the server is over.
func (j *Job) until(x *Exchange, so func() bool) bool {
	var gone <-chan struct{}
	if x != nil {
		gone = x.R.Context().Done()
	}
	for {
		j.mu.Lock()
		ok, change := so(), j.change
		j.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-change:
		case <-gone:
			return false
		case <-j.s.closing:
			return false
		}
	}
}

// ended reports a final status. j.mu is held.
func (j *Job) ended() bool {
	return j.status == "completed" || j.status == "failed" || j.status == "cancelled"
}

// Cancelled waits for tasks/cancel, or another end.
func (j *Job) Cancelled() { j.until(nil, j.ended) }

// Status is the present one.
func (j *Job) Status() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.status
}

// state is the Task object.
func (j *Job) state() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Sprintf(`{"taskId":%q,"status":%q,"statusMessage":%q,"createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttl":60000,"pollInterval":200}`, j.ID, j.status, j.message)
}

func (j *Job) get(x *Exchange) {
	x.Head("application/json")
	x.write(x.Result(j.state()))
}

func (j *Job) cancel(x *Exchange) {
	j.set(func() {
		if !j.ended() {
			j.status = "cancelled"
			j.outcome = func(x *Exchange) string {
				return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"cancelled"}}`, x.ID)
			}
		}
	})
	j.get(x)
}

// result answers with the outcome when it is there; questions go out on its stream (L32).
func (j *Job) result(x *Exchange) {
	for {
		var ask []string
		if !j.until(x, func() bool {
			ask, j.requests = j.requests, nil
			return len(ask) > 0 || j.outcome != nil
		}) {
			return
		}
		for _, r := range ask {
			x.Event(r)
		}
		j.mu.Lock()
		outcome := j.outcome
		j.mu.Unlock()
		if outcome != nil {
			x.Event(outcome(x))
			return
		}
	}
}

// Keep adds texts to the blocks of the result.
func (j *Job) Keep(texts ...string) {
	j.set(func() {
		for _, text := range texts {
			j.blocks = append(j.blocks, fmt.Sprintf(`{"type":"text","text":%q}`, text))
		}
	})
}

// Ask puts the task into input_required, asks on a stream of tasks/result, and returns
// the answer. id is JSON.
func (j *Job) Ask(id, method, params string) json.RawMessage {
	ch := j.s.expect(id)
	related := fmt.Sprintf(`{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":%q}},%s`, j.ID, strings.TrimPrefix(params, "{"))
	j.set(func() {
		j.status = "input_required"
		j.requests = append(j.requests, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, related))
	})
	var answer json.RawMessage
	select {
	case answer = <-ch:
	case <-j.s.closing:
	}
	j.set(func() { j.status = "working" })
	return answer
}

// End ends the task: with a result, whose content is the blocks and what else members
// say ("" for nothing), with isError if the status is failed.
func (j *Job) End(status, members string) {
	j.set(func() {
		if j.ended() {
			return
		}
		j.status = status
		if len(j.blocks) == 0 {
			j.blocks = []string{`{"type":"text","text":"result of ` + j.ID + `"}`}
		}
		result := fmt.Sprintf(`{"content":[%s],"isError":%t%s,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":%q}}}`, strings.Join(j.blocks, ","), status == "failed", members, j.ID)
		j.outcome = func(x *Exchange) string { return x.Result(result) }
		j.inlined = fmt.Sprintf(`{"resultType":"complete","content":[%s],"isError":%t%s}`, strings.Join(j.blocks, ","), status == "failed", members)
	})
}

// Fail ends the task with a JSON-RPC error, or, without a code, by the server's own
// cancellation.
func (j *Job) Fail(code int, message string) {
	j.set(func() {
		j.status, j.message = "failed", message
		if code == 0 {
			j.status, code = "cancelled", -32000
		}
		j.failure = fmt.Sprintf(`{"code":%d,"message":%q}`, code, message)
		j.outcome = func(x *Exchange) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, x.ID, code, message)
		}
	})
}
