package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/sparing"
	"taskgate/shim"
)

// awaitedFor is how long a replica goes on to believe that a client waits for a slow call, unless it hears that the
// client does no more: that news may be lost. A client that is believed to wait for longer costs its same call a look.
const awaitedFor = time.Hour

// mostAwaited bounds the calls of other replicas that this one knows to be awaited.
const mostAwaited = 100_000

// Repeats is what this replica knows of calls that a repeat may pick up. Only the calls of clients that have some look
// in the store before they are sent, so that all others cost it nothing.
type Repeats struct {
	Store shim.Repeats // nil if calls are never picked up
	// Refused counts by server and tool which calls could not be kept, for the log: a client may give up thousands.
	Refused sparing.Repeats[[2]string]
	some    atomic.Bool // there are clients

	mu      sync.Mutex
	left    map[string]time.Time            // clients with calls that are left, and until when that is believed
	awaited map[string]map[string]time.Time // the slow calls that clients wait for, likewise
	n       int                             // of those
}

func newRepeats(store shim.Repeats) *Repeats {
	return &Repeats{Store: store, left: map[string]time.Time{}, awaited: map[string]map[string]time.Time{}}
}

// Hear takes news of another replica, or of this one before the others have it. life is how long a call that is left
// counts as such without further news.
func (rs *Repeats) Hear(n shim.LingerNews, life time.Duration) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	now := time.Now()
	switch calls := rs.awaited[n.Client]; {
	case n.Left:
		rs.left[n.Client] = later(rs.left[n.Client], now.Add(life))
	case n.Over && calls != nil:
		if _, ok := calls[n.Call]; ok {
			delete(calls, n.Call)
			rs.n--
		}
		if len(calls) == 0 {
			delete(rs.awaited, n.Client)
		}
	case !n.Over && rs.n < mostAwaited:
		if calls == nil {
			calls = map[string]time.Time{}
			rs.awaited[n.Client] = calls
		}
		if _, ok := calls[n.Call]; !ok {
			rs.n++
		}
		calls[n.Call] = now.Add(awaitedFor)
	}
	rs.some.Store(len(rs.left)+len(rs.awaited) > 0)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Forget notes that a client has no calls that may be picked up.
func (rs *Repeats) Forget(client string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.left, client)
	rs.n -= len(rs.awaited[client])
	delete(rs.awaited, client)
	rs.some.Store(len(rs.left)+len(rs.awaited) > 0)
}

// Look says what is known of the caller of a call: left that some call of it is left, and awaited that the client waits
// for the same call still.
func (rs *Repeats) Look(r shim.Repeat) (client, call string, left, awaited bool) {
	if rs.Store == nil || !r.IsPossible() || !rs.some.Load() {
		return "", "", false, false
	}
	client = r.Client()
	rs.mu.Lock()
	until, has := rs.left[client]
	calls := len(rs.awaited[client])
	rs.mu.Unlock()
	if left = has && time.Now().Before(until); !left && calls == 0 {
		return client, "", false, false
	}
	call = r.Call()
	rs.mu.Lock()
	defer rs.mu.Unlock()
	until, has = rs.awaited[client][call]
	return client, call, left, has && time.Now().Before(until)
}

// Knows reports whether a client has calls that a repeat may pick up, or slow ones that it waits for.
func (rs *Repeats) Knows(r shim.Repeat) (client string, known bool) {
	if rs.Store == nil || !r.IsPossible() || !rs.some.Load() {
		return "", false
	}
	client = r.Client()
	rs.mu.Lock()
	defer rs.mu.Unlock()
	_, left := rs.left[client]
	return client, left || len(rs.awaited[client]) > 0
}

// Refresh reads which clients have calls that are left, and forgets what is believed no more. A client that has none
// by the store is forgotten when its next call has looked. While the store is away, what is known stays.
func (rs *Repeats) Refresh(ctx context.Context) error {
	if rs.Store == nil {
		return nil
	}
	clients, err := rs.Store.Clients(ctx)
	if err != nil {
		return err
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	now := time.Now()
	for _, client := range clients {
		rs.left[client] = later(rs.left[client], now.Add(time.Minute)) // each beat renews it
	}
	for client, until := range rs.left {
		if now.After(until) {
			delete(rs.left, client)
		}
	}
	for client, calls := range rs.awaited {
		for call, until := range calls {
			if now.After(until) {
				delete(calls, call)
				rs.n--
			}
		}
		if len(calls) == 0 {
			delete(rs.awaited, client)
		}
	}
	rs.some.Store(len(rs.left)+len(rs.awaited) > 0)
	return nil
}

// Note is that of the store, repeated until it has answered or ctx ends. This replica knows of it at once.
func (rs *Repeats) Note(ctx context.Context, e shim.Lingering, state shim.LingerState, life time.Duration, from ...shim.LingerState) (shim.LingerState, error) {
	rs.Hear(shim.LingerNews{Client: e.Client, Call: e.Call, Left: state == shim.LingerLeft}, life)
	return Retry(ctx, func(ctx context.Context) (shim.LingerState, error) { return rs.Store.Note(ctx, e, state, from, life) })
}

// Drop is that of the store, likewise.
func (rs *Repeats) Drop(ctx context.Context, e shim.Lingering) {
	rs.Hear(shim.LingerNews{Client: e.Client, Call: e.Call, Over: true}, 0)
	ctx, stop := context.WithTimeout(ctx, dropFor)
	defer stop()
	// If that fails, its time ends it.
	_, _ = Retry(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, rs.Store.Drop(ctx, e) })
}

// dropFor bounds how long a call is tried to be forgotten.
const dropFor = time.Minute
