package sim

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// modernAnswer is what a client of 2026-07-28 has to know of a result.
type modernAnswer struct {
	ResultType, TaskID, Status, RequestState string
	InputRequests                            map[string]json.RawMessage
	Result                                   json.RawMessage
	Error                                    *struct{ Message string }
}

func readModern(m message) (a modernAnswer) {
	_ = json.Unmarshal(m.Result, &a) // an error has no result
	return a
}

// plan is what a client of a call wants and does.
type plan struct {
	path, tool string
	ms, notes  int
	pad        int           // how many bytes each note has besides
	tasks      bool          // it takes tasks
	slow       bool          // it reads slowly
	beside     int           // how many more calls the same session makes at once
	counts     bool          // it takes partial results on the GET stream of its session
	prompt     bool          // it answers as soon as it is asked, as programs do
	cancels    bool          // it cancels its task
	patience   time.Duration // it gives up the call after so long; 0 for never
}

// arguments spells the parameters of a call.
func (c *client) arguments(p plan) string {
	return fmt.Sprintf(`"name":"%s","arguments":{"token":"%s","ms":%d,"notes":%d,"pad":%d}`, p.tool, c.call.token, p.ms, p.notes, p.pad)
}

// runModern makes a call as a client of 2026-07-28, answers what it is asked, and follows its task.
func (c *client) runModern(p plan) {
	arguments, more := c.arguments(p), ""
	for range p.notes + 4 {
		c.call.Note("client", "calls %s at %s", p.tool, p.path)
		m, err := c.askModern("", p.path, "tools/call", p.tool, arguments+more, p.tasks, p.patience)
		switch a := readModern(m); {
		case err != nil && p.patience > 0:
			c.call.Succeed("given up")
			return
		case err != nil:
			c.call.End("cut", Any)
			return
		case m.Error != nil:
			c.call.End("refused: "+m.Error.Message, Any)
			return
		case a.ResultType == "input_required":
			c.call.Note(c.replica, "asks the client")
			if !p.prompt {
				c.pause()
			}
			more = `,"requestState":` + spellJSON(a.RequestState) + "," + c.answers(a.InputRequests)
			continue
		case a.ResultType == "task":
			c.call.Acknowledge(c.replica, a.TaskID)
			c.follow(p, a.TaskID)
			return
		default:
			c.call.Complete(c.replica, contentOf(m.Result))
			c.call.Succeed("answered at once")
			return
		}
	}
	c.call.Blame("it was asked again and again")
}

func spellJSON(s string) string {
	b, _ := json.Marshal(s) // a string cannot fail
	return string(b)
}

// answers spells the client's answers to questions.
func (c *client) answers(asked map[string]json.RawMessage) string {
	var all []string
	for key := range asked {
		all = append(all, fmt.Sprintf(`%s:{"action":"accept","content":{"word":"%s"}}`, spellJSON(key), wordOf(c.call.token, c.call.owner)))
	}
	return `"inputResponses":{` + strings.Join(all, ",") + `}`
}

// follow polls a task until it has ended, answers what it asks, and looks at it as another principal.
func (c *client) follow(p plan, id string) {
	params := `"taskId":"` + id + `"`
	c.followTask(p, task{
		id: id,
		ask: func(replica, method string, patience time.Duration) (message, error) {
			return c.askModern(replica, p.path, method, id, params, true, patience)
		},
		read: func(m message) shown {
			a := readModern(m)
			return shown{status: a.Status, why: a.errorText(), content: contentOf(a.Result), asked: a.InputRequests}
		},
		peek: func() {
			if c.chance(12) {
				c.peek(p, id)
			}
		},
		wait: func() {},
		again: func(s shown) {
			if s.status == "completed" {
				c.call.Complete(c.replica, s.content)
			}
			if c.chance(8) { // it has ended: that changes nothing
				_, _ = c.askModern("", p.path, "tasks/cancel", id, params, true, 0)
			}
		},
		answer: func(s shown) bool {
			m, err := c.askModern("", p.path, "tasks/update", id, params+","+c.answers(s.asked), true, 0)
			return err == nil && m.Error == nil
		},
	})
}

func (a modernAnswer) errorText() string {
	if a.Error != nil {
		return a.Error.Message
	}
	return string(a.Result)
}

// peek looks at the task as another principal: it must be unknown.
func (c *client) peek(p plan, id string) {
	other := map[string]string{"ann": "bob", "bob": "ann"}[c.call.owner]
	thief := *c
	thief.call = &Call{j: c.call.j, token: c.call.token, owner: other}
	for _, method := range []string{"tasks/get", "tasks/cancel"} {
		m, err := thief.askModern("", p.path, method, id, `"taskId":"`+id+`"`, true, 0)
		if err == nil && m.Error == nil {
			c.call.Blame("%s may %s it at %s: %s", other, method, thief.replica, m.Result)
		}
	}
}
