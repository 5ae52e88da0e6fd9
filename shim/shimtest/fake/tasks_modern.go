package fake

import (
	"encoding/json"
	"fmt"
	"strings"
)

// input is a question of a modern server's task.
type input struct {
	key, request string
	answer       chan json.RawMessage
}

// TaskExtension has a modern server run the tools as tasks of its own, for requests that declare
// the extension io.modelcontextprotocol/tasks. A tool whose Support is required cannot be called
// otherwise. End with the status failed is a completed task whose result has isError (T28).
func TaskExtension(s *Server, tools ...TaskTool) *Tasks {
	t := &Tasks{s: s}
	s.Capabilities(`{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{}}}`)
	for _, tool := range tools {
		s.Tool(tool.Name, t.callModern(tool))
	}
	s.On("tasks/get", declaring(t.of((*Job).detail)))
	s.On("tasks/update", declaring(t.of((*Job).update)))
	s.On("tasks/cancel", declaring(t.of((*Job).acknowledge)))
	return t
}

// declares reports whether a request declares the extension.
func (x *Exchange) declares() bool {
	var p struct {
		Meta struct {
			Capabilities struct {
				Extensions map[string]json.RawMessage
			} `json:"io.modelcontextprotocol/clientCapabilities"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(x.Params, &p)
	return p.Meta.Capabilities.Extensions["io.modelcontextprotocol/tasks"] != nil
}

// undeclared refuses who does not declare the extension (T5, T6).
var undeclared = RPCError(400, -32021, "missing required client capability", `{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`)

func declaring(b Behaviour) Behaviour {
	return func(x *Exchange) {
		if !x.declares() {
			undeclared(x)
			return
		}
		b(x)
	}
}

func (t *Tasks) callModern(tool TaskTool) Behaviour {
	return func(x *Exchange) {
		switch {
		case !x.declares() && tool.Support == "required":
			undeclared(x)
			return
		case !x.declares():
			Text("plain")(x)
			return
		}
		x.Run()
		j := t.add(x.Params)
		if tool.First != nil {
			tool.First(j)
		}
		created := strings.Replace(j.summary(), "{", `{"resultType":"task",`, 1)
		go tool.Script(j)
		x.Head("application/json")
		x.write(x.Result(created))
	}
}

// Wants replaces the members ttlMs and pollIntervalMs of the task.
func (j *Job) Wants(members string) { j.set(func() { j.wants = members }) }

// Say sets the status message.
func (j *Job) Say(message string) { j.set(func() { j.message = message }) }

// summary is the Task object of the extension.
func (j *Job) summary() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return "{" + j.members() + "}"
}

// members are those of a Task. j.mu is held.
func (j *Job) members() string {
	status := j.status
	if status == "failed" && j.inlined != "" {
		status = "completed" // T28
	}
	return fmt.Sprintf(`"taskId":%q,"status":%q,"statusMessage":%q,"createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z",%s`, j.ID, status, j.message, j.wants)
}

// detail answers tasks/get.
func (j *Job) detail(x *Exchange) {
	x.Head("application/json")
	x.write(x.Result(`{"resultType":"complete",` + j.whole() + "}"))
}

// whole are the members of the task with what its status adds.
func (j *Job) whole() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	more := ""
	switch {
	case j.inlined != "":
		more = `,"result":` + j.inlined
	case j.failure != "" && j.status == "failed":
		more = `,"error":` + j.failure
	case j.status == "input_required":
		var open []string
		for _, q := range j.open {
			open = append(open, fmt.Sprintf("%q:%s", q.key, q.request))
		}
		more = `,"inputRequests":{` + strings.Join(open, ",") + "}"
	}
	return j.members() + more
}

// Input opens a question of the task, and returns where its answer comes.
func (j *Job) Input(key, method, params string) <-chan json.RawMessage {
	q := input{key, fmt.Sprintf(`{"method":%q,"params":%s}`, method, params), make(chan json.RawMessage, 1)}
	j.set(func() { j.open, j.status = append(j.open, q), "input_required" })
	return q.answer
}

// Await is an answer; nil once the server is over.
func (j *Job) Await(answer <-chan json.RawMessage) json.RawMessage {
	select {
	case a := <-answer:
		return a
	case <-j.s.closing:
		return nil
	}
}

// Withdraw closes a question that has no answer.
func (j *Job) Withdraw(key string) { j.set(func() { j.shut(key) }) }

// shut closes a question. j.mu is held.
func (j *Job) shut(key string) (answer chan json.RawMessage) {
	for i, q := range j.open {
		if q.key == key {
			j.open = append(append([]input(nil), j.open[:i]...), j.open[i+1:]...)
			if len(j.open) == 0 && j.status == "input_required" {
				j.status = "working"
			}
			return q.answer
		}
	}
	return nil
}

// update takes answers. Those to what is not open are ignored (T36).
func (j *Job) update(x *Exchange) {
	var p struct {
		Responses map[string]json.RawMessage `json:"inputResponses"`
	}
	_ = json.Unmarshal(x.Params, &p)
	j.set(func() {
		for key, answer := range p.Responses {
			if to := j.shut(key); to != nil {
				to <- answer
			}
		}
	})
	x.Head("application/json")
	x.write(x.Result(`{"resultType":"complete"}`))
}

// acknowledge answers tasks/cancel (T41).
func (j *Job) acknowledge(x *Exchange) {
	j.set(func() {
		if !j.ended() {
			j.status = "cancelled"
		}
	})
	x.Head("application/json")
	x.write(x.Result(`{"resultType":"complete"}`))
}
