package shim

import "sync"

// Bound counts calls, tasks or requests in flight on this replica, in all and by owner, and refuses
// those over its limits. It is safe for concurrent use. Its fields are set before that, and then
// changed by Limit.
type Bound struct {
	// Most is the limit in all, and MostPerOwner that of one owner. 0 is no limit. Anonymous ones count
	// towards Most only.
	Most, MostPerOwner int
	// Key is the configuration key of Most. The key of MostPerOwner is the same followed by PerOwner.
	Key string
	// All and Own tell a client which limit is reached: "tasks on this server" for Most, "tasks of this
	// caller" for MostPerOwner.
	All, Own string

	mu     sync.Mutex
	n      int
	owners map[string]int
}

// PerOwner ends each configuration key of a limit for one authenticated caller.
const PerOwner = "_per_owner"

// Enter counts one more, or refuses it with a *BusyError. After success the caller calls Leave.
func (b *Bound) Enter(owner string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.Most > 0 && b.n >= b.Most:
		return &BusyError{Key: b.Key, Limit: b.All, RetryAfter: retryBusy}
	case owner != "" && b.MostPerOwner > 0 && b.owners[owner] >= b.MostPerOwner:
		return &BusyError{Key: b.Key + PerOwner, Limit: b.Own, RetryAfter: retryBusy}
	}
	b.countOne(owner)
	return nil
}

// Limit changes the limits. Those in flight stay, even over a new limit.
func (b *Bound) Limit(most, mostPerOwner int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Most, b.MostPerOwner = most, mostPerOwner
}

// Force counts one more regardless of the limits: a task that was adopted.
func (b *Bound) Force(owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countOne(owner)
}

// countOne counts one more. The lock is held.
func (b *Bound) countOne(owner string) {
	b.n++
	if owner == "" {
		return
	}
	if b.owners == nil {
		b.owners = make(map[string]int)
	}
	b.owners[owner]++
}

// Count returns how many are in flight.
func (b *Bound) Count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// Leave gives back what Enter or Force counted.
func (b *Bound) Leave(owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n--
	if owner == "" {
		return
	}
	if b.owners[owner]--; b.owners[owner] == 0 {
		delete(b.owners, owner)
	}
}
