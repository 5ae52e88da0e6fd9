// Package pool has what is used again: the buffers of streams, and those of large messages.
//
// # Owners
//
// Whoever gets something from a pool owns it, and puts it back once, when nobody reads or writes it any more. Its owner
// never hands it on together with the duty to put it back, except to a budget.Hold: that puts a buffer back when the last
// user of the hold is done. What outlives its owner is copied before. What is never put back is only lost to the pool;
// what is put back too early becomes part of somebody else's message. So where it is in doubt, nothing is lent.
//
// Tests hold both: [Lent] says what has not been put back, and [OverwriteReturned] has bytes that were put back read as
// none that anybody has sent.
package pool

import (
	"sync"
	"sync/atomic"
)

// Pool has values of one kind. It is safe for concurrent use.
type Pool[T any] struct {
	free sync.Pool // of *T
	make func() *T
	lent atomic.Int64
}

// counts are those of all pools.
var counts sync.Map // name → *atomic.Int64

// New makes a pool. It is called once for each name, where the variable is declared.
func New[T any](name string, of func() *T) *Pool[T] {
	p := &Pool[T]{make: of}
	counts.Store(name, &p.lent)
	return p
}

// Get returns a value, which is perhaps new.
func (p *Pool[T]) Get() *T {
	p.lent.Add(1)
	if v, ok := p.free.Get().(*T); ok {
		return v
	}
	return p.make()
}

// Put takes back a value of Get.
func (p *Pool[T]) Put(v *T) {
	p.lent.Add(-1)
	p.free.Put(v)
}

// Lent returns how many values of each pool were got and not put back, by its name. Pools that lack none are left out.
func Lent() map[string]int64 {
	all := make(map[string]int64)
	counts.Range(func(name, lent any) bool {
		if n := lent.(*atomic.Int64).Load(); n != 0 {
			all[name.(string)] = n
		}
		return true
	})
	return all
}
