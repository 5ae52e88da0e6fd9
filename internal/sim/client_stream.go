package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// tellWithin is how soon a GET stream tells the end of a task: it looks by itself each 30 s.
const tellWithin = 45 * time.Second

// stream is what a client has heard on the GET stream of its session about its task.
type stream struct {
	events legacyCall
	status string
	ended  func() // the end of the task was told

	// The following are of a client that counts partial results.

	seq, texts int  // how many there were since it began to count
	anew       bool // it has begun to count anew: what had ended by then is left out
}

// countAnew forgets what was counted: the client has no event to resume from, or hears that messages may be missing.
func (s *stream) countAnew() { s.seq, s.texts, s.anew, s.status = 0, 0, true, "" }

// hearStream takes a message of the GET stream that is about a task.
func (c *client) hearStream(s *stream, p plan, id, event string, m message, text []byte) {
	c.count(&s.events, event, text)
	var about struct {
		TaskID, Status, Logger string
		Seq                    *int
		Content                []struct{ Text string }
	}
	_ = json.Unmarshal(m.Params, &about) // other messages have no task
	switch {
	case p.counts && m.Method == "notifications/message" && about.Logger == "taskgate":
		c.call.Note(c.replica, "says that messages may be missing")
		s.countAnew()
	case about.TaskID != id:
	case m.Method == "notifications/tasks/partial":
		c.hearPartial(s, about.Seq, about.Content)
	case m.Method == "notifications/tasks/status":
		c.hearStatus(s, p, about.Status)
	}
}

func (c *client) hearPartial(s *stream, seq *int, content []struct{ Text string }) {
	switch {
	case seq == nil || *seq != s.seq:
		c.call.Blame("%s sent the partial result %v in place of %d", c.replica, seq, s.seq)
	case isFinal(s.status):
		c.call.Blame("%s sent the partial result %d after it told that the task is %s", c.replica, *seq, s.status)
	}
	s.seq++
	for _, b := range content {
		s.texts++
		if want := fmt.Sprintf("%s at %d", c.call.token, s.texts); b.Text != want {
			c.call.Blame("%s sent %q in place of %q", c.replica, b.Text, want)
		}
	}
}

func (c *client) hearStatus(s *stream, p plan, status string) {
	c.call.Note(c.replica, "tells that the task is %s", status)
	switch {
	case isFinal(s.status):
		c.call.Blame("%s told that the task is %s after it was told as %s", c.replica, status, s.status)
	case status == "completed" && p.counts && s.texts != p.notes && !(s.anew && s.texts == 0):
		c.call.Blame("%s told that the task is completed after %d of %d partial results", c.replica, s.texts, p.notes)
	}
	if s.status = status; isFinal(status) {
		s.ended()
	}
}

// listen holds the GET stream of the session, and comes back at any replica: by Last-Event-ID, but where the client
// counts sometimes without. stop waits until the stream has told the end of the task, and closes it.
func (c *client) listen(p plan, id string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	one := *c
	one.rand = rand.New(rand.NewPCG(c.rand.Uint64(), 7))
	told := make(chan struct{})
	heard := &stream{ended: sync.OnceFunc(func() { close(told) })}
	hear := func(event string, m message, text []byte) bool {
		one.hearStream(heard, p, id, event, m, text)
		return p.counts && one.chance(20) // it leaves
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			h := one.headers()
			h["Accept"] = "text/event-stream"
			switch last := heard.events.last; {
			case last != "" && !(p.counts && one.chance(4)):
				h["Last-Event-ID"] = last
			case p.counts:
				heard.events = legacyCall{}
				heard.countAnew()
			}
			_, _, err := one.send(request{verb: http.MethodGet, path: "/mcp", header: h, hear: hear, ctx: ctx, patience: time.Hour})
			if ctx.Err() == nil {
				one.call.Note(one.replica, "gives no GET stream any more: %v", err)
				one.pause()
			}
		}
	})
	return func() {
		late := false
		select {
		case <-told:
		case <-time.After(tellWithin):
			late = !one.call.disturbed()
		}
		cancel()
		reading.Wait()
		if late && !(heard.anew && heard.texts == 0) {
			one.call.Blame("the GET stream has not told the end of the task after %v", tellWithin)
		}
	}
}
