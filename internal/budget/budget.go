// Package budget bounds how many bytes of messages a process holds at once. A request that needs more than
// there is room for waits.
//
// # Why every wait ends
//
// A request takes bytes in steps: for its body, and later for the answer. So requests that wait for more may
// hold all the bytes. Therefore a part of them, enough for the largest request with its answer, is set aside
// for one hold at a time: the one that has waited longest. This hold always gets its bytes: it gets its
// answer, writes it, and gives all its bytes back; then the next in the queue follows. How long that takes is
// bounded by its server and its client.
//
// Each wait also ends with the caller's context, and after the time that the budget was made with.
//
// # Owners
//
// A hold may have an owner. All holds of one owner have at most half of the other bytes, and one of them
// those that are set aside. So an owner who fills that leaves room for the others.
//
// [Hold.InTurn] bounds the processor time for long messages.
//
// # Buffers
//
// A hold that lends has the buffers of large messages go back to their pool when its last user is done ([Hold.Lend],
// [ReadLent]). Whatever reads such a message belongs to a user of the hold, or copies it. Where a message may be read
// later, because the store or another caller gets it, the hold stops lending before that ([Hold.Keep]): from then on it
// leaves its buffers to the collector.
package budget

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"taskgate/internal/pool"
)

// Free is the size in bytes above which messages are counted: the goroutine that handles a smaller one takes
// more.
const Free = 4 << 10

// ErrFull says that there was no room in time.
var ErrFull = errors.New("budget: no room for the message in time")

// Bytes is a budget. It is safe for concurrent use. A nil *Bytes is unbounded, and so are its holds.
type Bytes struct {
	size  int64
	wait  time.Duration
	turns turns

	mu      sync.Mutex // guards all below, and the holds
	aside   int64
	share   int64            // the most that the holds of one owner may have, except first
	others  int64            // what all holds except first have
	owned   map[string]int64 // the part of others that each owner has
	first   *Hold            // the hold with the bytes that are set aside; nil while they are free
	waiting list.List        // of *waiter, the next at the front
}

// waiter is a caller that waits for n bytes.
type waiter struct {
	hold *Hold
	n    int64
	done chan error // has room for one error
}

// New returns a budget of size bytes, of which those for the largest request are set aside (see the package
// comment). wait bounds each wait.
func New(size, largest int64, wait time.Duration) *Bytes {
	b := &Bytes{size: size, wait: wait, turns: newTurns(), owned: make(map[string]int64)}
	b.SetAside(largest)
	return b
}

// SetAside changes how large the largest request may be. It may be called while there are holds.
func (b *Bytes) SetAside(largest int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.aside = min(largest, b.size)
	b.share = (b.size - b.aside) / 2
	b.wake()
}

// Held returns how many bytes are held. It is at most the size.
func (b *Bytes) Held() int64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.others + b.firsts()
}

// Waiting returns how many callers wait for bytes.
func (b *Bytes) Waiting() int {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting.Len()
}

// Hold has the bytes of one request and its answer. A caller that makes or shares it must release it.
type Hold struct {
	budget *Bytes
	owner  string // "" for none
	n      int64
	users  int
	lends  bool
	lent   []*pool.Buffer // go back after the last user
}

// Hold returns an empty hold without an owner.
func (b *Bytes) Hold() *Hold { return b.HoldOf("") }

// HoldOf returns an empty hold of an owner; "" for none.
func (b *Bytes) HoldOf(owner string) *Hold {
	if b == nil {
		return nil
	}
	return &Hold{budget: b, owner: owner, users: 1}
}

// Share adds a user, and returns the hold.
func (h *Hold) Share() *Hold {
	if h != nil {
		h.budget.mu.Lock()
		defer h.budget.mu.Unlock()
		h.users++
	}
	return h
}

// Release ends one user. The last one gives back all the bytes.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.users--; h.users == 0 {
		b.give(h, h.n)
		for _, one := range h.lent {
			one.Return()
		}
		h.lent = nil
	}
}

// Lend has large messages in buffers that are lent until the last user is done.
func (h *Hold) Lend() {
	if h != nil {
		h.budget.mu.Lock()
		defer h.budget.mu.Unlock()
		h.lends = true
	}
}

// Keep ends that for good: what was read may be read after the last user is done.
func (h *Hold) Keep() {
	if h == nil {
		return
	}
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.lends = false
	for _, one := range h.lent {
		one.Abandon()
	}
	h.lent = nil
}

func (h *Hold) isLending() bool {
	if h == nil {
		return false
	}
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	return h.lends
}

// Own takes over a buffer of ReadLent, which may be nil.
func (h *Hold) Own(lent *pool.Buffer) {
	if lent == nil {
		return
	}
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	if !h.lends || h.users == 0 {
		lent.Abandon()
		return
	}
	h.lent = append(h.lent, lent)
}

// Take adds n bytes to the hold, and waits until there is room for them. The error is ErrFull, or the cause
// of the end of ctx; the hold is then unchanged. A hold without users takes nothing, because its bytes would
// be lost.
func (h *Hold) Take(ctx context.Context, n int64) error {
	if h == nil || n <= 0 {
		return nil
	}
	b := h.budget
	b.mu.Lock()
	if b.waiting.Len() == 0 || b.first == h {
		if decided, err := b.decide(h, n); decided {
			b.mu.Unlock()
			return err
		}
	}
	w := &waiter{hold: h, n: n, done: make(chan error, 1)}
	place := b.waiting.PushBack(w)
	b.wake() // others may only wait for bytes of their own owner
	b.mu.Unlock()
	return b.await(ctx, w, place)
}

// await waits for the decision about w.
func (b *Bytes) await(ctx context.Context, w *waiter, place *list.Element) error {
	timer := time.NewTimer(b.wait)
	defer timer.Stop()
	var err error
	select {
	case err = <-w.done:
		return err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = ErrFull
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(w.done) == 0 {
		b.waiting.Remove(place)
		b.wake() // the next may need less
		return err
	}
	if granted := <-w.done; granted == nil { // it was granted just now
		b.give(w.hold, w.n)
	}
	return err
}

// Give takes n bytes from the hold.
func (h *Hold) Give(n int64) {
	if h == nil || n <= 0 {
		return
	}
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.give(h, n)
}

// decide grants n bytes to a hold or refuses them. It reports false if the hold has to wait. mu is held, as
// for all below.
func (b *Bytes) decide(h *Hold, n int64) (decided bool, err error) {
	switch {
	case h.users == 0:
		return true, nil
	case b.first == h && b.others+h.n+n > b.size, b.first != h && b.others+n > b.size && n > b.aside:
		return true, ErrFull // more than could ever be free: it would wait for itself
	case b.first != h && b.room(n) && b.shares(h, n):
	case b.first == nil:
		b.count(h, -h.n)
		b.first = h
	case b.first != h:
		return false, nil
	}
	b.change(h, n)
	return true, nil
}

// give takes bytes from a hold, and grants them to waiters.
func (b *Bytes) give(h *Hold, n int64) {
	if n = min(n, h.n); n > 0 {
		b.change(h, -n)
		b.wake()
	}
}

// wake serves the waiters in their order, and those of first at once. A waiter whose owner has its share
// holds up no other waiter, and small requests pass large ones. first becomes one of the others as soon as
// there is room, because it may live for long.
func (b *Bytes) wake() {
	if f := b.first; f != nil && b.others+f.n <= b.size-b.aside && b.shares(f, f.n) {
		b.first = nil
		b.count(f, f.n)
	}
	blocked := false
	var full []string // owners that have their share
	for e := b.waiting.Front(); e != nil; {
		w, next := e.Value.(*waiter), e.Next()
		if b.first == w.hold || (!blocked || b.small(w.n)) && !slices.Contains(full, w.hold.owner) {
			decided, err := b.decide(w.hold, w.n)
			switch {
			case decided:
				b.waiting.Remove(e)
				w.done <- err
			case b.room(w.n):
				full = append(full, w.hold.owner)
			default:
				blocked = true
			}
		}
		e = next
	}
}

// small reports whether n bytes are so few, a thousandth of the budget, that they may pass a large request
// that waits.
func (b *Bytes) small(n int64) bool { return n <= b.size/1000 }

// room reports whether there is room for n bytes outside the bytes that are set aside.
func (b *Bytes) room(n int64) bool { return b.others+n <= b.size-max(b.aside, b.firsts()) }

// shares reports whether n more bytes are within the share of the hold's owner.
func (b *Bytes) shares(h *Hold, n int64) bool {
	return h.owner == "" || b.owned[h.owner]+n <= b.share
}

// firsts returns the bytes of first.
func (b *Bytes) firsts() int64 {
	if b.first == nil {
		return 0
	}
	return b.first.n
}

func (b *Bytes) change(h *Hold, n int64) {
	h.n += n
	if b.first != h {
		b.count(h, n)
	}
}

// count adds n bytes to those of the others.
func (b *Bytes) count(h *Hold, n int64) {
	b.others += n
	if b.owned[h.owner] += n; b.owned[h.owner] == 0 {
		delete(b.owned, h.owner)
	}
}

type key struct{}

// With returns a context whose readers add the bytes that they hold to h; with nil they count none.
func With(ctx context.Context, h *Hold) context.Context { return context.WithValue(ctx, key{}, h) }

// From returns the hold of a context; nil if it has none.
func From(ctx context.Context) *Hold {
	h, _ := ctx.Value(key{}).(*Hold)
	return h
}
