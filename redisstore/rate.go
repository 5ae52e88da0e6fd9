package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"time"

	"taskgate/internal/patience"
	"taskgate/shim"
)

// mostTakes is how many requests of a caller one script counts.
const mostTakes = 256

// Rate bounds how many requests a caller may send per second, to all replicas together: they
// count by the clock of Redis, in one key for each caller, which is gone once the caller has
// been quiet for long enough to have its whole burst again.
//
// A caller that sends too much must not keep Redis busy, which others wait for. So there is one
// script at a time for each caller, for all its requests that have come meanwhile. And no more
// requests ask Redis than it could allow, by what is known of the caller here: the others are
// refused at once. They would all wait for one reply, and be in the way of everybody then.
type Rate struct {
	store    *Store
	interval time.Duration // between two requests at the rate
	burst    int

	mu      sync.Mutex
	callers map[string]*caller // those that have requests here, or had until just now
}

// caller is what a Rate knows of one caller. Rate.mu guards it.
type caller struct {
	waiting []*take // for the next script
	asking  bool    // a script is on its way
	// free is when it may send one more at the earliest, if all that asked are let in; the zero
	// time says no more than its burst does
	free   time.Time
	timing bool // a timer looks whether it can be forgotten
}

// take are requests that are to be counted. Once done is closed, wait and err are known.
type take struct {
	ctx  context.Context // of the request
	n    int
	wait time.Duration
	err  error
	done chan struct{}
}

// NewRate allows so many requests per second in the long run, at least one, and burst of them at
// once after a pause. All replicas should agree on both.
func NewRate(s *Store, perSecond, burst int) *Rate {
	perSecond = max(perSecond, 1)
	interval := (time.Second / time.Duration(perSecond)).Round(time.Microsecond)
	return &Rate{store: s, interval: interval, burst: burst, callers: make(map[string]*caller)}
}

// Take takes n requests out of what a caller may send. wait is 0, or after how long the same
// requests would be in time; more than a burst never are. An error says that it cannot be known
// just now. It is asked once: a repeat might count twice, and makes a caller wait for no good.
func (r *Rate) Take(ctx context.Context, name string, n int) (wait time.Duration, err error) {
	ctx, done := patience.Use(ctx)
	defer func() { done(!errors.Is(err, shim.ErrUnavailable)) }()
	t := &take{ctx: ctx, n: n, done: make(chan struct{})}
	if wait := r.join(name, t); wait > 0 {
		return wait, nil
	}
	select {
	case <-t.done:
		return t.wait, t.err
	case <-ctx.Done():
		return 0, wrap("rate", ctx.Err())
	}
}

// join has requests counted by the next script, or returns how long they are too early.
func (r *Rate) join(name string, t *take) (early time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.callers[name]
	if c == nil {
		c = &caller{}
		r.callers[name] = c
	}
	now := time.Now()
	if full := r.full(now); c.free.Before(full) {
		c.free = full
	}
	next := c.free.Add(time.Duration(t.n) * r.interval)
	if early = next.Add(-r.interval).Sub(now); early > 0 {
		return early
	}
	c.free = next
	c.waiting = append(c.waiting, t)
	if !c.asking {
		c.asking = true
		go r.ask(name, c) // ends with the requests that wait
	}
	return 0
}

// full is the free time of a caller that has its whole burst.
func (r *Rate) full(now time.Time) time.Time {
	return now.Add(-time.Duration(r.burst-1) * r.interval)
}

// ask has all requests of a caller counted that wait, group by group.
func (r *Rate) ask(name string, c *caller) {
	for group := r.next(name, c); group != nil; group = r.next(name, c) {
		free, known := r.count(name, group)
		r.mu.Lock()
		if !known || !free.IsZero() {
			c.free = free
		}
		r.mu.Unlock()
		for _, t := range group {
			close(t.done)
			runtime.Gosched() // a burst that is let in at once would come before all that others do
		}
	}
}

// next takes the requests for the next script. Where there are none the caller is forgotten,
// or, if it was refused, once it may send again.
func (r *Rate) next(name string, c *caller) (group []*take) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(c.waiting), mostTakes)
	if n > 0 {
		group, c.waiting = c.waiting[:n:n], c.waiting[n:]
		return group
	}
	c.asking = false
	if !c.timing {
		r.forget(name, c)
	}
	return nil
}

// forget removes a caller that has its whole burst, now or as soon as that is so. r.mu is held.
func (r *Rate) forget(name string, c *caller) {
	early := c.free.Sub(r.full(time.Now()))
	c.timing = !c.asking && early > 0
	switch {
	case c.asking:
	case c.timing:
		time.AfterFunc(early, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.forget(name, c)
		})
	default:
		delete(r.callers, name)
	}
}

// count has a group of requests of one caller counted, each by itself. It returns when the
// caller may send one more, the zero time if all were let in, and whether Redis has said so. It
// goes on when the client of a request has gone, which is counted all the same, and for no longer
// than the one that came last has time.
func (r *Rate) count(name string, group []*take) (free time.Time, known bool) {
	ctx := group[len(group)-1].ctx
	within, stop := context.WithoutCancel(ctx), func() {}
	if until, ok := ctx.Deadline(); ok {
		within, stop = context.WithDeadline(within, until)
	}
	defer stop()
	a := &argv{} // it waits in line: the client's own queue leaves some waiting for long
	a.addInt(r.interval.Microseconds(), int64(r.burst), int64(len(group)))
	for _, t := range group {
		a.addInt(int64(t.n))
	}
	begin := time.Now()
	reply, err := rateScript.run(within, r.store.writes, []string{r.store.keys.rate(name)}, a)
	if err == nil && len(reply) != 1+len(group) {
		err = fmt.Errorf("unexpected reply %q", reply)
	}
	for i, t := range group {
		var us int64
		if err == nil {
			us, err = strconv.ParseInt(reply[1+i], 10, 64)
		}
		if err != nil {
			t.err = wrap("rate", err)
			continue
		}
		t.wait = time.Duration(us) * time.Microsecond
		if t.wait > 0 {
			free = begin.Add(t.wait - time.Duration(t.n-1)*r.interval)
		}
	}
	return free, err == nil
}
