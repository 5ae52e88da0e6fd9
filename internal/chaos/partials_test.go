package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
)

// A checking client of partial results: it opts in, keeps listen streams that break
// off and begin again at other gateways, and holds all that it hears to the rules. A
// client of another dialect has a listener of its own, and the same view.

// listener is a dialect that can show partial results.
type listener interface {
	dialect
	// listen hears of a task, beginning with the partial result of number from, until
	// the stream ends: each goes to v, and each final status.
	listen(ctx context.Context, addr, id string, from int, v *view) error
}

// view is what one client sees of the partial results of one task, over all of its
// streams.
type view struct {
	judge *judge
	r     *record
	next  int  // the number of the next one
	over  bool // on this stream, a final status has come
	ended bool // on any
}

// piece takes one.
func (v *view) piece(seq int, content json.RawMessage) {
	j := v.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	j.partials++
	switch {
	case v.over || v.ended:
		j.blamed("%s: task %s: partial result %d came after the end", v.r.call.id, v.r.id, seq)
	case seq != v.next:
		j.blamed("%s: task %s: partial result %d came in place of %d", v.r.call.id, v.r.id, seq, v.next)
	case seq < len(v.r.pieces) && v.r.pieces[seq] != string(content):
		j.blamed("%s: task %s: partial result %d was %.200s, and is now %.200s", v.r.call.id, v.r.id, seq, v.r.pieces[seq], content)
	case seq == len(v.r.pieces):
		v.r.pieces = append(v.r.pieces, string(content))
	}
	v.next = seq + 1
}

// status takes a status that the stream tells of. All pieces come before a final one.
func (v *view) status(status string) {
	if !(state{status: status}).ended() {
		if v.over {
			v.judge.blame("%s: task %s: %s was told after the end", v.r.call.id, v.r.id, status)
		}
		return
	}
	v.over, v.ended = true, true
	j := v.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	if v.r.total >= 0 && v.r.total != v.next {
		j.blamed("%s: task %s ended after %d partial results, and after %d", v.r.call.id, v.r.id, v.r.total, v.next)
	}
	v.r.total = v.next
}

// listen is that of the extension of the gateway's own.
func (m *modern) listen(ctx context.Context, addr, id string, from int, v *view) error {
	v.over = false
	params := map[string]any{"notifications": map[string]any{"taskIds": []string{id}}}
	if from > 0 {
		params["_meta"] = map[string]any{mcp.ExtensionPartials: map[string]any{id: map[string]any{"after": from - 1}}}
	}
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
			v.status(n.Params.Status)
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

// showsPartials is the listener of a dialect, if it has one and uses it.
func showsPartials(d dialect) (listener, bool) {
	m, ok := d.(*modern)
	return m, ok && m.partials
}

// follow is one client that listens to a task until its end. Its streams last for
// moments or for seconds.
func (c *clients) follow(p *call, r *record, l listener, n int) {
	ctx, stop := context.WithTimeout(context.Background(), attention)
	defer stop()
	random := rand.New(rand.NewPCG(uint64(p.n), uint64(100+n)))
	v := &view{judge: c.judge, r: r}
	for !v.ended && ctx.Err() == nil {
		listening, cut := context.WithTimeout(ctx, 50*time.Millisecond+time.Duration(random.Float64()*float64(listenFor)))
		err := l.listen(listening, c.fleet.any(random), r.id, v.next, v)
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
func (c *clients) replay(ctx context.Context, addr string, r *record, l listener, from int) error {
	v := &view{judge: c.judge, r: r, next: from}
	asking, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	if err := l.listen(asking, addr, r.id, from, v); err != nil {
		return err
	}
	if !v.ended {
		return errors.New("the stream ended before the task did")
	}
	return nil
}

// checkPartials holds what clients saw of a task that has ended against what the
// upstream said: nothing out of order, nothing twice, and, if the call has run to its
// end, nothing left out.
func checkPartials(r *record) error {
	var seen []string
	for _, p := range r.pieces {
		var blocks []struct{ Text string }
		if err := json.Unmarshal([]byte(p), &blocks); err != nil || len(blocks) == 0 {
			return fmt.Errorf("a partial result is %.200s (%w)", p, err)
		}
		for _, b := range blocks {
			seen = append(seen, b.Text)
		}
	}
	said := saying(r.call.id)
	whole := r.end.status == taskclient.Completed || r.end.err != nil && r.end.err.Code == codeWrong
	if whole && !slices.Equal(seen, said) || len(seen) > len(said) || !slices.Equal(seen, said[:len(seen)]) {
		return fmt.Errorf("the partial results are\n\t%s\nand the upstream said\n\t%s", strings.Join(seen, "\n\t"), strings.Join(said, "\n\t"))
	}
	return nil
}

// partialsSeen sums up, for the summary.
func (j *judge) partialsSeen() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	tasks, pieces := 0, 0
	for _, r := range j.tasks {
		if len(r.pieces) > 0 {
			tasks++
			pieces += len(r.pieces)
		}
	}
	return fmt.Sprintf("%d of %d tasks, read %d times", pieces, tasks, j.partials)
}
