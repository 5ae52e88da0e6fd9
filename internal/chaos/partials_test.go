package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// A checking client of partial results: it opts in, keeps listen streams that break
// off and begin again at other gateways, and holds all that it hears to the rules. A
// client of another dialect has a listener of its own, and the same view.

// listener is one client's way to the pieces of tasks.
type listener interface {
	// listen hears of a task, beginning with the piece of number from, until the
	// stream ends: each piece goes to v, and the end.
	listen(ctx context.Context, addr, id string, from int, v *view) error
}

// listen is that of the extension of the gateway's own.
func (m *modern) listen(ctx context.Context, addr, id string, from int, v *view) error {
	v.over = false
	params := map[string]any{"notifications": map[string]any{"taskIds": []string{id}}}
	if from > 0 {
		params["_meta"] = map[string]any{mcp.ExtensionPartials: map[string]any{id: map[string]any{"after": from - 1}}}
	}
	running := false // when the stream began
	_, err := m.do(ctx, addr, mcp.MethodListen, params, func(msg taskclient.Message) {
		var n struct {
			Method string
			Params struct {
				TaskID  string
				Seq     *int
				Content json.RawMessage
				Status  string
			}
		}
		if json.Unmarshal(msg.Body, &n) != nil {
			return
		}
		switch n.Method {
		case mcp.NotifyTask:
			ended := (state{status: n.Params.Status}).ended()
			if ended && !running && v.next == 0 {
				v.late()
			} else {
				v.status(n.Params.Status)
			}
			running = running || !ended
		case mcp.NotifyTaskPartial:
			if n.Params.TaskID != id || n.Params.Seq == nil {
				m.judge.blame("task %s: a strange partial result: %.300s", id, msg.Body)
				return
			}
			v.piece(*n.Params.Seq, n.Params.Content)
		}
	})
	return err
}

// shows is how a client of a dialect listens to a task, and what comes then; nil where
// it does not.
func shows(d dialect, t tool, id string) (way string, l listener) {
	if d, ok := d.(*modern); ok && d.partials && t.stream {
		return byListening, d
	}
	return "", nil
}

// follow is one client that listens to a task until its end. Its streams last for
// moments or for seconds.
func (c *clients) follow(p *call, v *view, l listener, n int) {
	ctx, stop := context.WithTimeout(context.Background(), attention)
	defer stop()
	random := rand.New(rand.NewPCG(uint64(p.n), uint64(100+n)))
	for !v.ended && ctx.Err() == nil {
		listening, cut := context.WithTimeout(ctx, 50*time.Millisecond+time.Duration(random.Float64()*float64(listenFor)))
		err := l.listen(listening, c.fleet.any(random), v.id, v.next, v)
		cut()
		var refused *taskclient.Error
		switch {
		case errors.As(err, &refused):
			c.asked.add("listen: " + brief(err))
		case err == nil:
			c.asked.add("listen: the stream was ended by the gateway")
		case errors.Is(err, context.DeadlineExceeded):
			c.asked.add("listen: the stream was left by the client")
		default:
			c.asked.add("listen: the stream broke")
		}
		wait(ctx, time.Duration(random.Float64()*float64(pollEvery)))
	}
}

// replay reads all partial results of a task that has ended once more, on one gateway.
func (c *clients) replay(ctx context.Context, addr string, way, id string, l listener, from int) error {
	v := c.judge.newView(id, way, from)
	asking, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	if err := l.listen(asking, addr, id, from, v); err != nil {
		return err
	}
	if !v.ended {
		return errors.New("the stream ended before the task did")
	}
	return nil
}

// followAll has a task listened to, from its handle on, by as many as the plan says.
func (c *clients) followAll(p *call, r *record) {
	if c.talk == nil {
		return
	}
	for n := range p.watchers {
		if way, l := shows(r.dialect, p.tool, r.id); l != nil {
			v := c.judge.newView(r.id, way, 0)
			c.talk.busy.Go(func() { c.follow(p, v, l, n) })
		}
	}
}

// again reads the pieces of a task that has ended from the first on and from the last,
// on any gateway, and holds what was seen of it in all against what was said.
func (c *clients) again(ctx context.Context, random *rand.Rand, r *record) {
	j := c.judge
	for _, after := range []bool{false, true} {
		way, l := shows(r.dialect, r.call.tool, r.id)
		if l == nil {
			return
		}
		from := 0
		if after {
			j.mu.Lock()
			from = max(j.shownOf(r.id, way).total, 0)
			j.mu.Unlock()
		}
		err := errors.New("not tried")
		for err != nil {
			err = c.replay(ctx, c.fleet.any(random), way, r.id, l, from)
			if err != nil && !wait(ctx, pollEvery) {
				j.blame("%s: the pieces of task %s cannot be read: %v", r.call.id, r.id, err)
				return
			}
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.checkTask(r)
}
