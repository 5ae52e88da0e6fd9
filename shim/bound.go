package shim

import "sync"

// Bound counts what is in flight on this replica, in all and by owner, and refuses what would
// be too much. It is safe for concurrent use. Its fields are set before that, and then changed by Limit.
type Bound struct {
	// Most is how many there may be, and MostPerOwner how many of one owner. 0 is any number.
	// Nobody owns what is anonymous: that counts towards Most alone.
	Most, MostPerOwner int
	// Key is the key of the configuration that sets Most. That of MostPerOwner is the same
	// with PerOwner behind it.
	Key string
	// All and Own say to a client what is full: "tasks on this server" where Most is reached,
	// "tasks of this caller" where MostPerOwner is.
	All, Own string

	mu     sync.Mutex
	n      int
	owners map[string]int
}

// PerOwner ends each key of the configuration that bounds what one authenticated caller has.
const PerOwner = "_per_owner"

// Enter counts one more, or refuses it with a *BusyError. Whoever has entered calls Leave.
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

// Limit changes how many there may be. Those that are too many stay.
func (b *Bound) Limit(most, mostPerOwner int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Most, b.MostPerOwner = most, mostPerOwner
}

// Force counts one more, however many there are: a task that was adopted.
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

// Count is how many there are.
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
