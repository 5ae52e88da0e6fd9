package operator

import (
	"context"
	"net/http"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/work"
)

const (
	// changesEvery is the least time between two events of a stream of changes.
	changesEvery = 500 * time.Millisecond
	// changesAlive is the silence after which a comment is sent.
	changesAlive = 15 * time.Second
)

// streamChanges tells a reader when to read again, and leaves out the changes: they may be outdated by then.
func (h *Handler) streamChanges(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the stream outlasts the deadline of the listener
	out := eventstream.NewWriter(w, changesAlive)
	defer out.Close()
	ctx, stop := context.WithCancel(r.Context())
	news, over := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(over)
		_ = h.o.Source.Changes(ctx, func() { work.Signal(news) })
	}()
	defer func() { stop(); <-over }()
	for out.SendNamed("change", "{}") == nil && work.Pause(ctx, changesEvery) == nil {
		select {
		case <-news:
		case <-over: // the store is closed
			return
		case <-ctx.Done(): // the reader has gone
			return
		}
	}
}
