package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/taskclient"
)

// hearing is a client that keeps what a gateway sends it.
type hearing struct {
	*taskclient.Client
	mu   sync.Mutex
	raw  []string
	seqs []int64
	text string
	end  taskclient.Task
	late bool // something came after the end
}

// hear is a client of the gateway that takes partial results, or not.
func hear(g *gateway, partials bool) *hearing {
	h := &hearing{Client: g.client(true)}
	h.Partials = partials
	h.Trace = h.message
	return h
}

func (h *hearing) message(m taskclient.Message) {
	if m.Sent {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.raw = append(h.raw, string(m.Body))
	var n struct {
		Method string
		Params json.RawMessage
	}
	_ = json.Unmarshal(m.Body, &n)
	switch n.Method {
	case "notifications/tasks":
		_ = json.Unmarshal(n.Params, &h.end)
	case "notifications/tasks/partial":
		var p struct {
			Seq     int64
			Content []struct{ Text string }
		}
		_ = json.Unmarshal(n.Params, &p)
		h.seqs = append(h.seqs, p.Seq)
		for _, b := range p.Content {
			h.text += b.Text
		}
		h.late = h.late || h.end.Ended()
	}
}

// listen hears of a task to its end, after a partial result if there is a seq.
func (h *hearing) listen(t *testing.T, id string, after ...int64) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	params := map[string]any{"notifications": map[string]any{"taskIds": []string{id}}}
	if len(after) > 0 {
		params["_meta"] = map[string]any{"dev.taskgate/partials": map[string]any{id: map[string]any{"after": after[0]}}}
	}
	if _, err := h.Do(ctx, "subscriptions/listen", params); err != nil {
		t.Fatalf("the stream did not end well: %v", err)
	}
}

// check wants all partial results from first on, in order, each once, and before the
// end.
func (h *hearing) check(t *testing.T, first int64, text string) {
	t.Helper()
	for i, seq := range h.seqs {
		if seq != first+int64(i) {
			t.Errorf("sequence %v, want one without gaps from %d", h.seqs, first)
			break
		}
	}
	if h.text != text || h.late || h.end.Status != taskclient.Completed {
		t.Errorf("read %q (after the end: %v) of %q; ended %s", h.text, h.late, text, h.end.Status)
	}
}

// A client that opted in reads along at any replica, live and afterwards, from the
// first piece or from where it was; one that did not hears nothing of it on any of
// its streams.
func TestPartialsOnEveryReplica(t *testing.T) {
	t.Parallel()
	a, b := twoReplicas(t)
	caller := hear(a, true)
	task := callTask(t, caller.Client, "write", map[string]any{"topic": "tea", "seconds": 2})
	live, plain, here := hear(b, true), hear(b, false), hear(a, true)
	var all sync.WaitGroup
	for _, h := range []*hearing{live, plain, here} {
		all.Go(func() { h.listen(t, task.ID) })
	}
	all.Wait()
	text := textOf(t, live.end.Result)
	if !strings.Contains(text, "tea is best") || len(live.seqs) < 5 {
		t.Fatalf("%d partial results of %q", len(live.seqs), text)
	}
	live.check(t, 0, text)
	here.check(t, 0, text)

	again, rest := hear(b, true), hear(a, true)
	again.listen(t, task.ID)
	if len(again.seqs) > 0 || again.end.Status != taskclient.Completed { // it has ended (P2)
		t.Errorf("after the end came %d partial results, and the end %v", len(again.seqs), again.end)
	}
	rest.listen(t, task.ID, 1)
	if skipped := len(text) - len(rest.text); skipped <= 0 || len(rest.seqs) != len(live.seqs)-2 {
		t.Errorf("after the second of %d partial results came %d", len(live.seqs), len(rest.seqs))
	} else {
		rest.check(t, 2, text[skipped:])
	}

	if _, err := plain.Get(t.Context(), task.ID); err != nil {
		t.Error(err)
	}
	quiet := hear(a, false)
	unasked := callTask(t, quiet.Client, "write", map[string]any{"topic": "milk", "seconds": 1})
	quiet.listen(t, unasked.ID)
	if _, err := quiet.Get(t.Context(), unasked.ID); err != nil {
		t.Error(err)
	}
	for _, m := range append(plain.raw, quiet.raw...) {
		if strings.Contains(m, "partial") || strings.Contains(m, `"seq"`) {
			t.Errorf("a client that did not opt in got %s", m)
		}
	}
	// Nothing was kept for it either: hints are, for who opted in with the call.
	late := hear(b, true)
	late.listen(t, unasked.ID, 0)
	if len(late.seqs) != 0 {
		t.Errorf("%d hints were kept of a call that did not opt in", len(late.seqs))
	}
}
