package upstream

import (
	"sync"
	"time"

	"taskgate/gateway/upstream/reading"
	"taskgate/internal/work"
)

// rootsVerdict says whether a server asks for roots outside of any call. Such a server keeps them for the session, and
// modern clients share one: nobody could be asked. All replicas have the same verdict, by the store.
type rootsVerdict struct {
	mu    sync.Mutex
	of    string // rootsKey of the server; "" before the first
	known bool
	asks  bool
	heard chan struct{} // closed once the server has asked; nil while nobody waits
	read  time.Time     // when the store was last asked
}

// Texts of the verdict in the store. Its place there is that of a session without an id.
const (
	rootsAsked   = `{"roots":"asked"}`
	rootsUnasked = `{"roots":"unasked"}`
)

// rootsRead is how long a replica believes that the server does not ask for roots: another one may have heard it.
const rootsRead = 5 * time.Second

// rootsKey names a server by what it says of itself: another version may do otherwise.
func rootsKey(d Description) string { return "roots-" + reading.FingerprintOf(d.Info) }

// find returns what is known here. fresh says that the store need not be asked.
func (r *rootsVerdict) find(key string) (asks, fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of != key || !r.known {
		return false, false
	}
	return r.asks, time.Since(r.read) < rootsRead
}

// expect returns a channel that is closed once the server asks.
func (r *rootsVerdict) expect(key string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turnTo(key)
	if r.heard == nil {
		r.heard = make(chan struct{})
	}
	r.wakeWaiting()
	return r.heard
}

// turnTo forgets another server, which stood at this address before. r.mu is held.
func (r *rootsVerdict) turnTo(key string) {
	if r.of != key {
		r.of, r.known, r.asks, r.heard = key, false, false, nil
	}
}

// note takes the verdict, and reports whether it is news that the server asks.
func (r *rootsVerdict) note(key string, asks bool) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turnTo(key)
	news = asks && !r.asks
	r.known, r.asks, r.read = true, r.asks || asks, time.Now()
	r.wakeWaiting()
	return news
}

// wakeWaiting wakes those who wait, once the server has asked. r.mu is held.
func (r *rootsVerdict) wakeWaiting() {
	if r.asks && r.heard != nil && !work.IsClosed(r.heard) {
		close(r.heard)
	}
}
