package node

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"taskgate/shim"
)

// reservedBytes is the least that a task which runs has set aside in the bounds of kept bytes, so that most results need
// not wait for room. Where results of its share were larger, it has as much as these.
const reservedBytes = 16 << 10

// mostLearned bounds the shares whose sizes of results are remembered.
const mostLearned = 10_000

// RecordBytes is about what the record of an ended task takes besides its result and its pieces.
const RecordBytes = 3 << 10

// Kept counts the bytes that the store keeps of ended tasks, until their time is over. Nothing of it goes earlier. So
// beyond its bounds no task is made, and the end of a task whose result has no room waits. It is safe for concurrent
// use.
type Kept struct {
	mu    sync.Mutex // guards all below, and the rooms
	bound shim.Bound
	ends  expiries
	freed chan struct{}      // closed once there may be more room
	sizes map[shim.Share]int // about how large the results of a share were lately, where they are large
}

// NewKept returns a count with the bounds in bytes of all that is kept and of that of one owner; 0 for none. past is
// what the store has already.
func NewKept(most, mostPerOwner int64, past []shim.KeptTask) *Kept {
	k := &Kept{freed: make(chan struct{}), sizes: make(map[shim.Share]int)}
	k.bound = shim.Bound{
		Key: "max_kept_bytes", Most: int(most), MostPerOwner: int(mostPerOwner),
		All: "bytes of kept results", Own: "bytes of kept results of this caller",
	}
	for _, one := range past {
		k.bound.CountMany(one.Share, int(one.Bytes))
		k.learnSize(one.Share, int(one.Bytes))
		k.ends = append(k.ends, expiry{at: one.Until, share: one.Share, n: int(one.Bytes)})
	}
	heap.Init(&k.ends)
	return k
}

// Halve says whether those without an owner have half of all together.
func (k *Kept) Halve(halved bool) { k.bound.Limit(k.bound.Most, k.bound.MostPerOwner, halved) }

// Usage returns how full the bound is, from 0 to 1, and Bytes how many bytes count.
func (k *Kept) Usage() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire()
	return k.bound.Usage()
}

// Bytes returns how many bytes count: those that are kept, and those that running tasks have set aside.
func (k *Kept) Bytes() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire()
	return k.bound.Count()
}

// Room is what one task has in Kept. A nil *Room has none, and needs none.
type Room struct {
	kept  *Kept
	share shim.Share
	n     int // what counts for it; 0 once it is given back, or left to expire
}

// Reserve sets room aside for a task, or refuses it with a *BusyError.
func (k *Kept) Reserve(s shim.Share) (*Room, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire()
	n := max(reservedBytes, k.sizes[s])
	if err := k.bound.EnterMany(s, n); err != nil {
		return nil, err
	}
	return &Room{kept: k, share: s, n: n}, nil
}

// learnSize notes the size of a result. Smaller ones make it forget a large one. The lock is held.
func (k *Kept) learnSize(s shim.Share, n int) {
	if n = max(n, k.sizes[s]/2); n <= reservedBytes {
		delete(k.sizes, s)
		return
	}
	if len(k.sizes) >= mostLearned {
		clear(k.sizes)
	}
	k.sizes[s] = n
}

// Force is Reserve of a task that is there already, regardless of the bounds.
func (k *Kept) Force(s shim.Share) *Room {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bound.CountMany(s, reservedBytes)
	return &Room{kept: k, share: s, n: reservedBytes}
}

// Grow raises the room to n bytes, if there is room for them.
func (r *Room) Grow(n int) bool {
	ok, _, _ := r.tryGrow(n)
	return ok
}

// tryGrow is Grow that else returns when there is more room at the latest: earlier is closed if it comes earlier.
func (r *Room) tryGrow(n int) (ok bool, earlier <-chan struct{}, latest time.Duration) {
	if r == nil || n <= r.n {
		return true, nil, 0
	}
	k := r.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	k.expire()
	k.bound.CountMany(r.share, -r.n)
	if k.bound.EnterMany(r.share, n) == nil {
		r.n = n
		return true, nil, 0
	}
	k.bound.CountMany(r.share, r.n)
	latest = time.Minute
	if len(k.ends) > 0 {
		latest = min(latest, max(time.Millisecond, time.Until(k.ends[0].at)))
	}
	return false, k.freed, latest
}

// AwaitGrowth waits until Grow succeeds. It returns the cause of the end of ctx.
func (r *Room) AwaitGrowth(ctx context.Context, n int) error {
	for {
		ok, earlier, latest := r.tryGrow(n)
		if ok {
			return nil
		}
		timer := time.NewTimer(latest)
		// A task that ends without a result wakes it, and the next expiry.
		select {
		case <-earlier:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// Keep says that the task has ended with n bytes, which are kept for this time. They count regardless of the bounds.
func (r *Room) Keep(n int, retain time.Duration) {
	if r == nil {
		return
	}
	k := r.kept
	k.mu.Lock()
	defer k.mu.Unlock()
	k.change(r, n)
	k.learnSize(r.share, n)
	r.n = 0
	heap.Push(&k.ends, expiry{at: time.Now().Add(retain), share: r.share, n: n})
}

// Drop gives the room back, if nothing is kept in it.
func (r *Room) Drop() {
	if r == nil {
		return
	}
	r.kept.mu.Lock()
	defer r.kept.mu.Unlock()
	r.kept.change(r, 0)
}

// change sets what counts for a room. The lock is held, as for all below.
func (k *Kept) change(r *Room, n int) {
	k.bound.CountMany(r.share, n-r.n)
	if n < r.n {
		k.signal()
	}
	r.n = n
}

// expire lets go of what the store no longer keeps.
func (k *Kept) expire() {
	some := false
	for now := time.Now(); len(k.ends) > 0 && !k.ends[0].at.After(now); some = true {
		e := heap.Pop(&k.ends).(expiry)
		k.bound.CountMany(e.share, -e.n)
	}
	if some {
		k.signal()
	}
}

func (k *Kept) signal() {
	close(k.freed)
	k.freed = make(chan struct{})
}

// expiry says until when bytes of a share are kept.
type expiry struct {
	at    time.Time
	share shim.Share
	n     int
}

// expiries is a heap of them, the next at the front.
type expiries []expiry

func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e expiries) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *expiries) Push(x any) { *e = append(*e, x.(expiry)) }

// Pop implements heap.Interface.
func (e *expiries) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
