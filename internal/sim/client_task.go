package sim

import (
	"encoding/json"
	"time"
)

// task is a task that a client follows, in its dialect.
type task struct {
	id     string
	ask    func(replica, method string, patience time.Duration) (message, error) // about it; "" is any replica
	read   func(m message) shown
	peek   func()        // before each poll: may others look?
	wait   func()        // instead of a poll, sometimes: until the end
	again  func(s shown) // between two looks at one that has ended: is its result still the same?
	answer func(s shown) (taken bool)
}

// shown is what a replica shows of a task.
type shown struct {
	status, why string // why it has failed
	content     []byte // of its result
	asked       map[string]json.RawMessage
}

// endWithin is how long an acknowledged task may take to end, with all that the simulator does to it.
const endWithin = 8 * time.Minute

// followTask polls a task until it has ended, and looks again at each replica.
func (c *client) followTask(p plan, t task) {
	began, answered, cancelled := time.Now(), 0, false
	for time.Since(began) < endWithin {
		if p.prompt {
			<-time.After(50 * time.Millisecond)
		} else {
			c.pause()
		}
		t.peek()
		if p.cancels && !cancelled && time.Since(began) > time.Duration(p.ms)*time.Millisecond/2 {
			c.call.Stop()
			if m, err := t.ask("", "tasks/cancel", 0); err == nil && m.Error == nil {
				c.call.Cancel(c.replica)
				cancelled = true
			}
		}
		t.wait()
		m, err := t.ask("", "tasks/get", c.someTimesImpatient())
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
		s := t.read(m)
		c.call.See(c.replica, s.status)
		switch {
		case isFinal(s.status):
			c.finish(t, s, cancelled)
			return
		case s.status == "input_required" && t.answer != nil:
			taken := t.answer(s)
			c.call.Note(c.replica, "takes the answer: %v", taken)
			if taken {
				answered++
			}
			if answered > 20*max(p.notes, 1) {
				c.call.Blame("its question was answered %d times and is asked still", answered)
				return
			}
		case s.status != "working":
			c.call.Blame("%s shows the task as %q", c.replica, s.status)
			return
		}
	}
	c.call.Blame("the task %s has not ended after %v", t.id, endWithin)
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

// finish judges the end of a task, and looks whether each replica shows the same.
func (c *client) finish(t task, s shown, cancelled bool) {
	for _, replica := range append([]string{c.replica, "", ""}, c.w.names()...) {
		t.again(s)
		m, err := t.ask(replica, "tasks/get", 0)
		if replica != "" {
			c.replica = replica
		}
		if err != nil {
			continue
		}
		if m.Error != nil {
			if c.judgeError(m) {
				return
			}
			continue
		}
		s = t.read(m)
		c.call.See(c.replica, s.status)
	}
	switch {
	case s.status == "completed", s.status == "cancelled" && cancelled:
		c.call.Succeed(s.status)
	case s.status == "failed":
		c.call.Fail(s.why)
	default:
		c.call.End(s.status, Forgets)
	}
}
