package e2e

import (
	"context"
	"encoding/json"
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

// listen hears of a task to its end.
func (h *hearing) listen(t *testing.T, id string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	if err := h.Listen(ctx, id); err != nil {
		t.Errorf("the stream did not end well: %v", err)
	}
}

// check wants all partial results, in order, each once, and before the end.
func (h *hearing) check(t *testing.T, text string) {
	t.Helper()
	for i, seq := range h.seqs {
		if seq != int64(i) {
			t.Errorf("sequence %v, want one without gaps", h.seqs)
			break
		}
	}
	if h.text != text || h.late || h.end.Status != taskclient.Completed {
		t.Errorf("read %q (after the end: %v) of %q; ended %s", h.text, h.late, text, h.end.Status)
	}
}
