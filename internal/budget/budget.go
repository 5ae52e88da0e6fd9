// Package budget bounds how many bytes of messages a process holds at once. Who needs more
// than there is room for waits.
//
// # Why nobody waits for ever
//
// A request takes bytes in steps: for its body, and later for the answer. So all the bytes
// may be held by requests that wait for more. Therefore a part of them, enough for the
// largest request with its answer, is set aside for one hold at a time. It goes to whoever
// has waited longest. This one never waits: it gets its answer, writes it, and gives all its
// bytes back, and then the next in the queue is the one. How long that takes is bounded by
// what it waits for besides bytes: its server, and its client.
//
// Besides, each wait ends with the caller's context, and after the time that the budget was
// made with.
//
// # Owners
//
// A hold may have an owner. All holds of one owner have at most half of what is not set aside,
// and one of them what is. So an owner who fills that does not keep the others waiting.
//
// To go through a long message is bounded as well, by [Hold.InTurn].
package budget

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Free is the size in bytes up to which a message is not worth being counted: the goroutine
// that handles it takes more.
const Free = 4 << 10

// ErrFull says that there was no room in time.
var ErrFull = errors.New("budget: no room for the message in time")

// Bytes is a budget. It is safe for concurrent use. A nil *Bytes is without bounds, and so
// are its holds.
type Bytes struct {
	size  int64
	wait  time.Duration
	turns turns

	mu      sync.Mutex // guards all below, and the holds
	aside   int64
	share   int64            // what the holds of one owner may have, but first
	others  int64            // what all holds have but first
	owned   map[string]int64 // what of that is of each owner
	first   *Hold            // the one for which bytes are set aside; nil while nobody needs them
	waiting list.List        // of *waiter, the first to be served at the front
}

// waiter is somebody who waits for n bytes.
type waiter struct {
	hold *Hold
	n    int64
	done chan error // has room for one
}

// New returns a budget of size bytes, of which those for the largest request are set aside
// (see the package comment). Nobody waits for longer than wait.
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

// Held is how many bytes are held. It is never more than the size.
func (b *Bytes) Held() int64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.others + b.firsts()
}

// Waiting is how many wait for bytes.
func (b *Bytes) Waiting() int {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waiting.Len()
}

// Hold is what one request holds, with all that comes of it. Whoever makes it, or shares it,
// has to release it.
type Hold struct {
	budget *Bytes
	owner  string // "" for none
	n      int64
	users  int
}

// Hold returns a hold of nothing, which has no owner.
func (b *Bytes) Hold() *Hold { return b.HoldOf("") }

// HoldOf returns a hold of nothing of an owner, "" for none.
func (b *Bytes) HoldOf(owner string) *Hold {
	if b == nil {
		return nil
	}
	return &Hold{budget: b, owner: owner, users: 1}
}

// Share adds a user. It returns the hold.
func (h *Hold) Share() *Hold {
	if h != nil {
		h.budget.mu.Lock()
		defer h.budget.mu.Unlock()
		h.users++
	}
	return h
}

// Release is the end of one user. The last one gives back all the bytes.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.users--; h.users == 0 {
		b.give(h, h.n)
	}
}

// Take adds n bytes to the hold, and waits until there is room for them. The error is ErrFull,
// or the cause of the end of ctx; nothing is added then. A hold without users takes nothing:
// nobody would give it back.
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
	b.wake() // others may wait for their own owner alone
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
		b.wake() // whoever is next may need less
		return err
	}
	if granted := <-w.done; granted == nil { // just now
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

// decide grants n bytes to a hold or refuses them. It reports false if the hold has to wait.
// mu is held, as for all below.
func (b *Bytes) decide(h *Hold, n int64) (decided bool, err error) {
	switch {
	case h.users == 0:
		return true, nil
	case b.first == h && b.others+h.n+n > b.size, b.first != h && b.others+n > b.size && n > b.aside:
		return true, ErrFull // more than anything may be: it would wait for itself
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

// give takes bytes from a hold, and grants them to those who wait.
func (b *Bytes) give(h *Hold, n int64) {
	if n = min(n, h.n); n > 0 {
		b.change(h, -n)
		b.wake()
	}
}

// wake serves those who wait, in their order, and whoever belongs to the first at once. Nobody
// waits for one whose owner has its share, and small wishes do not wait for large ones. The first becomes one of the others as soon as there
// is room: it may live for long.
func (b *Bytes) wake() {
	if f := b.first; f != nil && b.others+f.n <= b.size-b.aside && b.shares(f, f.n) {
		b.first = nil
		b.count(f, f.n)
	}
	blocked := false
	var full []string // owners who have their share
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

// small reports whether n bytes are so few, a thousandth of the budget, that they may be granted
// before a large wish that waits.
func (b *Bytes) small(n int64) bool { return n <= b.size/1000 }

// room reports whether there is room for n bytes besides what is set aside.
func (b *Bytes) room(n int64) bool { return b.others+n <= b.size-max(b.aside, b.firsts()) }

// shares reports whether n bytes more are within the share of the hold's owner.
func (b *Bytes) shares(h *Hold, n int64) bool {
	return h.owner == "" || b.owned[h.owner]+n <= b.share
}

// firsts is what first holds.
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

// count adds n bytes to what others have than first.
func (b *Bytes) count(h *Hold, n int64) {
	b.others += n
	if b.owned[h.owner] += n; b.owned[h.owner] == 0 {
		delete(b.owned, h.owner)
	}
}

type key struct{}

// With returns a context in which what is held is added to h; nil for nothing.
func With(ctx context.Context, h *Hold) context.Context { return context.WithValue(ctx, key{}, h) }

// From returns the hold of a context; nil where there is none.
func From(ctx context.Context) *Hold {
	h, _ := ctx.Value(key{}).(*Hold)
	return h
}
