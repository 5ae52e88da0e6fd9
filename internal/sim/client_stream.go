package sim

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// tellWithin is how soon a GET stream tells the end of a task: it looks by itself each 30 s.
const tellWithin = 45 * time.Second

// listen holds the GET stream of the session, and comes back by Last-Event-ID at any replica. stop waits until the
// stream has told the end of the task, and closes it.
func (c *client) listen(id string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	one := *c
	one.rand = rand.New(rand.NewPCG(c.rand.Uint64(), 7))
	heard, told, status := &legacyCall{}, make(chan struct{}), ""
	hear := func(event string, m message, text []byte) bool {
		one.count(heard, event, text)
		var t legacyTask
		_ = json.Unmarshal(m.Params, &t) // other messages have no task
		if m.Method != "notifications/tasks/status" || t.TaskID != id {
			return false
		}
		one.call.Note(one.replica, "tells that the task is %s", t.Status)
		if isFinal(status) {
			one.call.Blame("%s told that the task is %s after it was told as %s", one.replica, t.Status, status)
		} else if isFinal(t.Status) {
			close(told)
		}
		status = t.Status
		return false
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for ctx.Err() == nil {
			h := one.headers()
			h["Accept"] = "text/event-stream"
			if heard.last != "" {
				h["Last-Event-ID"] = heard.last
			}
			_, _, err := one.send(request{verb: http.MethodGet, path: "/mcp", header: h, hear: hear, ctx: ctx, patience: time.Hour})
			if ctx.Err() == nil {
				one.call.Note(one.replica, "gives no GET stream any more: %v", err)
				one.pause()
			}
		}
	})
	return func() {
		select {
		case <-told:
		case <-time.After(tellWithin):
			if !one.call.disturbed() {
				one.call.Blame("the GET stream has not told the end of the task after %v", tellWithin)
			}
		}
		cancel()
		reading.Wait()
	}
}
