package shim

import (
	"maps"
	"sync"
	"time"
)

// RetryBusy is the time that a refused caller is told to wait: long enough to be polite, short against
// the calls that fill the queue.
const RetryBusy = time.Second

// Bound counts calls, tasks, requests in flight or bytes on this replica, in all and by share, and refuses
// those over its limits. It is safe for concurrent use. Its fields are set before that, and then
// changed by Limit.
type Bound struct {
	// Most is the limit in all, and MostPerOwner that of one owner, who has at most half of Most as
	// well. 0 is no limit.
	Most, MostPerOwner int
	// Halved says that those without an owner have half of Most together. Else they have all of it.
	// Without Most they count as one owner.
	Halved bool
	// Key is the configuration key of Most. The key of MostPerOwner is the same followed by PerOwner.
	Key string
	// All and Own tell a client which limit is reached: "tasks on this server" for Most, "tasks of this
	// caller" for MostPerOwner.
	All, Own string

	mu     sync.Mutex
	n      int
	shares map[Share]int // that of an owner, of an address, and in Share{} of all without an owner
}

// PerOwner ends each configuration key of a limit for one authenticated caller.
const PerOwner = "_per_owner"

// ofStrangers ends the name of a limit whose share of callers without an owner is full.
const ofStrangers = " of callers who do not sign in"

// Enter counts one more, or refuses it with a *BusyError. After success the caller calls Leave.
func (b *Bound) Enter(s Share) error { return b.EnterMany(s, 1) }

// EnterMany counts n more, or refuses them with a *BusyError. Who has nothing so far may enter with more than a
// limit. After success the caller gives them back with CountMany.
func (b *Bound) EnterMany(s Share, n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.enter(s, n)
}

// EnterFor is Enter for whoever takes the place of another one, which is about to leave. Until then there is one more than
// the limit.
func (b *Bound) EnterFor(s, leaving Share) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(leaving, -1)
	defer b.count(leaving, 1)
	return b.enter(s, 1)
}

// enter is EnterMany with the lock held.
func (b *Bound) enter(s Share, n int) error {
	full := func(of Share, most int) bool { return most > 0 && b.shares[of] > 0 && b.shares[of]+n > most }
	strangers := b.strangersShare()
	switch {
	case b.Most > 0 && b.n > 0 && b.n+n > b.Most:
		return &BusyError{Key: b.Key, Limit: b.All, RetryAfter: RetryBusy}
	case s.Owner != "" && full(s, OwnerShare(b.Most, b.MostPerOwner)):
		return &BusyError{Key: b.Key + PerOwner, Limit: b.Own, RetryAfter: RetryBusy}
	case s.Owner == "" && (full(Share{}, strangers) || s.Address != "" && full(s, half(strangers))):
		return &BusyError{Key: b.Key, Limit: b.All + ofStrangers, RetryAfter: RetryBusy}
	}
	b.count(s, n)
	return nil
}

// strangersShare is the share of all without an owner, 0 for any number. The lock is held.
func (b *Bound) strangersShare() int {
	if b.Most <= 0 {
		return b.MostPerOwner
	}
	return StrangersShare(b.Most, b.Halved)
}

// OwnerShare is the share of one owner in a limit: half of it at most.
func OwnerShare(most, perOwner int) int {
	if most <= 0 || perOwner <= 0 {
		return perOwner
	}
	return min(perOwner, half(most))
}

// StrangersShare is the share of all callers without an owner in a limit.
func StrangersShare(most int, halved bool) int {
	if halved {
		return half(most)
	}
	return most
}

// AddressShare is the share of one address in the share of all callers without an owner.
func AddressShare(strangers int) int { return half(strangers) }

// half is half of a limit; 0 is none.
func half(most int) int { return (most + 1) / 2 }

// Limit changes the limits. Those in flight stay, even over a new limit.
func (b *Bound) Limit(most, mostPerOwner int, halved bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Most, b.MostPerOwner, b.Halved = most, mostPerOwner, halved
}

// Force counts one more regardless of the limits: a task that was adopted.
func (b *Bound) Force(s Share) { b.CountMany(s, 1) }

// Leave gives back what Enter or Force counted.
func (b *Bound) Leave(s Share) { b.CountMany(s, -1) }

// CountMany counts n more regardless of the limits, or less if n is negative.
func (b *Bound) CountMany(s Share, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(s, n)
}

// count is CountMany with the lock held.
func (b *Bound) count(s Share, by int) {
	if b.shares == nil {
		b.shares = make(map[Share]int)
	}
	b.n += by
	of := []Share{s}
	if s.Owner == "" && s.Address != "" {
		of = append(of, Share{})
	}
	for _, one := range of {
		if b.shares[one] += by; b.shares[one] == 0 {
			delete(b.shares, one)
		}
	}
}

// Count returns how many are in flight.
func (b *Bound) Count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// Shares returns how many are in flight of each share; of Share{}, those of callers without an owner and an address.
func (b *Bound) Shares() map[Share]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := maps.Clone(b.shares)
	for s, n := range b.shares {
		if s.Owner == "" && s.Address != "" {
			all[Share{}] -= n
		}
	}
	if all[Share{}] == 0 {
		delete(all, Share{})
	}
	return all
}

// Usage returns how full the limit is, from 0 to 1: as a whole, or the share of all callers without an
// owner, whichever is fuller.
func (b *Bound) Usage() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Most <= 0 {
		return 0
	}
	return min(1, max(float64(b.n)/float64(b.Most), float64(b.shares[Share{}])/float64(StrangersShare(b.Most, b.Halved))))
}
