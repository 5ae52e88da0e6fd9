package redisstore

import (
	"strconv"
	"sync"
	"time"

	"taskgate/shim"
)

// leaps notices that the clock of Redis has leapt ahead, as it does in a failover to a
// machine whose clock is not that of the one before. By such a clock the heartbeats of
// replicas that live may have expired. They renew them at their next beat, so nobody
// is gone until a whole expiry has passed since the leap: what design.md 0.5 says of
// an outage, which silences everybody, too.
//
// It notices as well that Redis went back to an older state, as after a failover or a
// restart from a snapshot: then the heartbeat that a replica finds is older than the one
// that it has written. Those of the others are as old, so this counts as a leap.
type leaps struct {
	mu sync.Mutex
	// written is when the heartbeats that this process knows to be stored were.
	written map[shim.Replica]int64
	base    time.Time     // our own clock, which does not leap, counts from here; zero at first
	seen    time.Duration // when the clock of Redis was last read, since base
	ahead   time.Duration // what it showed then at base, at most
	leapt   time.Time     // when it was last found to have leapt
}

const (
	// slightly is a leap that may be overlooked: heartbeats are renewed when two thirds
	// of their expiry are left.
	slightly = 100 * time.Millisecond
	// slew is the part of the time by which a clock may run faster while it is put
	// right in small steps.
	slew = 10
)

// observe takes a time that Redis has told, in ms, in answer to what was asked at
// begin. However long the answer took, only what is certain is a leap.
func (l *leaps) observe(told string, begin time.Time) {
	ms, err := strconv.ParseInt(told, 10, 64)
	if err != nil {
		return
	}
	clock := time.Duration(ms) * time.Millisecond
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.base.IsZero()
	if first {
		l.base = begin
	}
	asked := begin.Sub(l.base)
	least, most := clock-time.Since(l.base), clock+time.Millisecond-asked
	before := l.ahead + (asked-l.seen)/slew
	switch {
	case first:
	case least > before+slightly:
		l.leapt = time.Now()
	default:
		most = min(most, before)
	}
	l.seen, l.ahead = asked, most
}

// found takes the heartbeat that a replica had when it beat, and the one that it has
// since. It reports whether Redis went back.
func (l *leaps) found(r shim.Replica, had, has string) bool {
	back := l.check(r, had)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.written == nil {
		l.written = map[shim.Replica]int64{}
	}
	_, l.written[r] = parseBeat(has)
	return back
}

// check compares the heartbeat that a replica has with the last one that it is known to
// have written, and reports whether Redis went back.
func (l *leaps) check(r shim.Replica, has string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, written := parseBeat(has)
	back := written < l.written[r]
	if back {
		l.leapt = time.Now()
	}
	return back
}

// over reports whether the last leap is longer ago than this.
func (l *leaps) over(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leapt.IsZero() || time.Since(l.leapt) >= d
}
