package operator

import (
	"context"
	"net/http"
	"time"

	"taskgate/internal/work"
)

const (
	// changesEvery is the least time between two events of a stream of changes.
	changesEvery = 500 * time.Millisecond
	// changesAlive is the silence after which a comment is sent.
	changesAlive = 15 * time.Second
	// writeWait bounds one write to a reader.
	writeWait = 10 * time.Second
)

// changes tells a reader when to read again, and leaves out the changes: they may be outdated by then.
func (h *Handler) changes(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // the stream outlasts the deadline of the listener
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	send := func(text string) bool {
		_ = out.SetWriteDeadline(time.Now().Add(writeWait))
		_, err := w.Write([]byte(text))
		return err == nil && out.Flush() == nil
	}
	ctx, stop := context.WithCancel(r.Context())
	news, over := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(over)
		_ = h.o.Source.Changes(ctx, func() { work.Signal(news) })
	}()
	defer func() { stop(); <-over }()
	for send("event: change\ndata: {}\n\n") {
		if !h.awaitChange(ctx, news, over, send) {
			return
		}
	}
}

// awaitChange waits for news, and for the pause between two events. It returns false once the reader has gone
// or the store is closed.
func (h *Handler) awaitChange(ctx context.Context, news, over <-chan struct{}, send func(string) bool) bool {
	if work.Pause(ctx, changesEvery) != nil {
		return false
	}
	alive := time.NewTicker(changesAlive)
	defer alive.Stop()
	for {
		select {
		case <-news:
			return true
		case <-alive.C:
			if !send(": alive\n\n") {
				return false
			}
		case <-over: // the store is closed
			return false
		case <-ctx.Done():
			return false
		}
	}
}
