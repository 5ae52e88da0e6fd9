package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"
)

// beatsPerExpiry is how often a heartbeat is renewed within its expiry: two may be lost.
const beatsPerExpiry = 3

// Heart keeps a replica alive in the store. It is the one sign of life, for tasks and for the streams
// of sessions. The Shim owns the heart of its replica.
type Heart struct {
	store   shim.Store
	replica shim.Replica
	Expiry  time.Duration
	log     *slog.Logger
	Ticked  chan struct{} // holds a signal after each beat
	Ticks   atomic.Int64  // number of beats so far
	logged  string        // the reason why the last beat failed, for Run; "" after a success

	beats work.Group // under way; none begins once the goodbye has, which must be the last beat

	// mu guards what follows. The recent history, see IsSteady: each time is when a successful beat began.
	mu     sync.Mutex
	since  time.Time // first beat of the present series
	last   time.Time
	missed bool // the latest beat failed
	gone   bool // the goodbye is said
}

// NewHeart makes the heart of a replica, whose heartbeat expires after this time. It beats on request
// (Alive) and during Run.
func NewHeart(store shim.Store, replica shim.Replica, expiry time.Duration, log *slog.Logger) *Heart {
	return &Heart{store: store, replica: replica, Expiry: expiry, log: log, Ticked: make(chan struct{}, 1)}
}

// Replica returns the name of the replica.
func (h *Heart) Replica() shim.Replica { return h.replica }

// Run beats until ctx ends, and does only that, so that a beat never waits for other work.
func (h *Heart) Run(ctx context.Context) {
	ticker := time.NewTicker(h.Expiry / beatsPerExpiry)
	defer ticker.Stop()
	for {
		bounded, stop := context.WithTimeoutCause(ctx, h.Expiry/beatsPerExpiry, shim.ErrUnavailable)
		err := h.SendBeat(bounded)
		stop()
		if ctx.Err() == nil && !errors.Is(err, shim.ErrDraining) {
			h.logBeat(err)
		}
		h.Ticks.Add(1)
		work.Signal(h.Ticked)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// logBeat logs a lost heartbeat once, until it is back or its reason changes.
func (h *Heart) logBeat(err error) {
	reason := ""
	if err != nil {
		reason = err.Error()
	}
	if reason == h.logged {
		return
	}
	h.logged = reason
	if err != nil {
		h.log.Warn("no heartbeat: the store is unavailable", "err", err)
	} else {
		h.log.Info("the store takes heartbeats again")
	}
}

// SendBeat beats once. ErrDraining after the goodbye, and the errors of the store.
func (h *Heart) SendBeat(ctx context.Context) error {
	begin, err := time.Now(), shim.ErrDraining
	if h.beats.Enter() {
		defer h.beats.Leave()
		err = h.store.Beat(ctx, h.replica, h.Expiry)
	}
	h.noteBeat(begin, err == nil)
	return err
}

// SayGoodbye says, once, that this replica's tasks may be adopted. Even if it fails, the heart beats no more.
func (h *Heart) SayGoodbye(ctx context.Context) error {
	h.mu.Lock()
	gone := h.gone
	h.mu.Unlock()
	if gone {
		return nil
	}
	h.beats.Refuse()
	if err := h.beats.Wait(ctx); err != nil {
		return err
	}
	err := h.store.Beat(ctx, h.replica, 0)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = h.gone || err == nil
	return err
}

// Alive ensures that the store counts this replica as alive before it gets a task or a stream of it,
// and waits for the store until ctx ends. A replica that was silent for too long, or has yet to beat,
// may be unknown there. If it then died before its next beat, no replica would miss it and adopt the
// task. ErrUnavailable, and ErrDraining once it has said goodbye.
func (h *Heart) Alive(ctx context.Context) error {
	h.mu.Lock()
	fresh := !h.last.IsZero() && time.Since(h.last) < h.Expiry
	h.mu.Unlock()
	if fresh {
		return nil
	}
	return h.SendBeat(ctx)
}

func (h *Heart) noteBeat(now time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	after := h.missed
	if h.missed = !ok; h.missed {
		return
	}
	// However short an outage was, other replicas may have beaten just before it and have expired: the
	// series begins anew.
	if after || h.last.IsZero() || now.Sub(h.last) >= h.Expiry {
		h.since = now
	}
	h.last = now
}

// IsSteady reports whether all beats of a whole expiry have succeeded. Only then this replica may
// declare others dead, so that an outage of the store, which silences all of them, orphans no task
// (design.md 0.5).
func (h *Heart) IsSteady() bool {
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.missed && !h.last.IsZero() && now.Sub(h.last) < h.Expiry && h.last.Sub(h.since) >= h.Expiry
}
