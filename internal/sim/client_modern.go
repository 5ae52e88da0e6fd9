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
	tasks      bool          // it takes tasks
	cancels    bool          // it cancels its task
	patience   time.Duration // it gives up the call after so long; 0 for never
}

// arguments spells the parameters of a call.
func (c *client) arguments(p plan) string {
	return fmt.Sprintf(`"name":"%s","arguments":{"token":"%s","ms":%d,"notes":%d}`, p.tool, c.call.token, p.ms, p.notes)
}

// runModern makes a call as a client of 2026-07-28, answers what it is asked, and follows its task.
func (c *client) runModern(p plan) {
	arguments, more := c.arguments(p), ""
	for range 5 {
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
			c.pause()
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

// endWithin is how long an acknowledged task may take to end, with all that the simulator does to it.
const endWithin = 8 * time.Minute

// follow polls a task until it has ended, and looks again at each replica.
func (c *client) follow(p plan, id string) {
	params, began, answered, cancelled := `"taskId":"`+id+`"`, time.Now(), 0, false
	for time.Since(began) < endWithin {
		c.pause()
		if c.chance(12) {
			c.peek(p, id)
		}
		if p.cancels && !cancelled && time.Since(began) > time.Duration(p.ms)*time.Millisecond/2 {
			if m, err := c.askModern("", p.path, "tasks/cancel", id, params, true, 0); err == nil && m.Error == nil {
				c.call.Cancel(c.replica)
				cancelled = true
			}
		}
		m, err := c.askModern("", p.path, "tasks/get", id, params, true, c.someTimesImpatient())
		if err != nil {
			c.call.Note(c.replica, "gives no status: %v", err)
			continue
		}
		if m.Error != nil {
			if c.judgeError(m) {
				return
			}
			continue
		}
		a := readModern(m)
		c.call.See(c.replica, a.Status)
		switch a.Status {
		case "input_required":
			if c.answer(p, id, a) {
				answered++
			}
			if answered > 20 {
				c.call.Blame("its question was answered %d times and is asked still", answered)
				return
			}
		case "completed", "failed", "cancelled":
			c.finish(p, id, a, cancelled)
			return
		case "working":
		default:
			c.call.Blame("%s shows the task as %q", c.replica, a.Status)
			return
		}
	}
	c.call.Blame("the task %s has not ended after %v", id, endWithin)
}

// someTimesImpatient is the patience of a poll: some give up soon.
func (c *client) someTimesImpatient() time.Duration {
	if c.chance(10) {
		return time.Duration(c.rand.IntN(20)) * time.Millisecond
	}
	return 0
}

// judgeError reads the error of a poll, and reports whether it is the end.
func (c *client) judgeError(m message) (over bool) {
	c.call.Note(c.replica, "answers a poll with the error %d %s", m.Error.Code, m.Error.Message)
	if m.Error.Code == -32603 {
		return false // the store is away
	}
	c.call.End("the task is unknown: "+m.Error.Message, Forgets)
	return true
}

// answer answers the questions of a task at some replica, and reports whether that has taken the answer.
func (c *client) answer(p plan, id string, a modernAnswer) bool {
	params := `"taskId":"` + id + `",` + c.answers(a.InputRequests)
	m, err := c.askModern("", p.path, "tasks/update", id, params, true, 0)
	taken := err == nil && m.Error == nil
	c.call.Note(c.replica, "takes the answer: %v", taken)
	return taken
}

// finish judges the end of a task, and looks whether each replica shows the same.
func (c *client) finish(p plan, id string, a modernAnswer, cancelled bool) {
	for _, replica := range append([]string{c.replica, "", ""}, c.w.names()...) {
		if a.Status == "completed" {
			c.call.Complete(c.replica, contentOf(a.Result))
		}
		if c.chance(8) { // it has ended: that changes nothing
			_, _ = c.askModern("", p.path, "tasks/cancel", id, `"taskId":"`+id+`"`, true, 0)
		}
		m, err := c.askModern(replica, p.path, "tasks/get", id, `"taskId":"`+id+`"`, true, 0)
		if replica != "" {
			c.replica = replica
		}
		if err != nil || m.Error != nil && m.Error.Code == -32603 {
			continue
		}
		if m.Error != nil {
			c.judgeError(m)
			return
		}
		a = readModern(m)
		c.call.See(c.replica, a.Status)
	}
	switch {
	case a.Status == "completed":
		c.call.Succeed("completed")
	case a.Status == "cancelled" && cancelled:
		c.call.Succeed("cancelled")
	case a.Status == "failed":
		c.call.Fail(string(a.errorText()))
	default:
		c.call.End(a.Status, Forgets)
	}
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
