package redisstore

import (
	"strconv"
	"sync"
	"time"

	"taskgate/shim"
)

// clockJumps notices that the clock of Redis has jumped ahead. A failover to a machine with
// another clock does that. The heartbeats of replicas that live may then have expired, until
// each replica has beaten again. So no replica counts as gone until a whole expiry has passed
// since the jump, as after an outage (design.md 0.5).
//
// It also notices that Redis went back to an older state, after a failover or a restart from a
// snapshot: a replica finds an older heartbeat than the one that it has written. The heartbeats
// of the others are as old, so this counts as a jump, too.
type clockJumps struct {
	mu sync.Mutex
	// written is when each replica's last heartbeat was stored, as far as this process knows.
	written map[shim.Replica]int64
	base    time.Time     // our own clock, which does not jump, counts from here; zero at first
	seen    time.Duration // when the clock of Redis was last read, since base
	ahead   time.Duration // what it showed then at base, at most
	jumped  time.Time     // when it was last found to have jumped
}

const (
	// slightly is a jump that may be overlooked: heartbeats are renewed when two thirds
	// of their expiry are left.
	slightly = 100 * time.Millisecond
	// slew is the part of the time by which a clock may run faster while it is put
	// right in small steps.
	slew = 10
)

// observeTime takes a time that Redis has told, in ms, in answer to what was asked at
// begin. However long the answer took, only what is certain is a jump.
func (j *clockJumps) observeTime(told string, begin time.Time) {
	ms, err := strconv.ParseInt(told, 10, 64)
	if err != nil {
		return
	}
	clock := time.Duration(ms) * time.Millisecond
	j.mu.Lock()
	defer j.mu.Unlock()
	first := j.base.IsZero()
	if first {
		j.base = begin
	}
	asked := begin.Sub(j.base)
	least, most := clock-time.Since(j.base), clock+time.Millisecond-asked
	before := j.ahead + (asked-j.seen)/slew
	switch {
	case first:
	case least > before+slightly:
		j.jumped = time.Now()
	default:
		most = min(most, before)
	}
	j.seen, j.ahead = asked, most
}

// takeBeat takes the heartbeat that a replica had when it beat, and the one that it has
// since. It reports whether Redis went back; see compareBeat.
func (j *clockJumps) takeBeat(r shim.Replica, known int64, had, has string) bool {
	back := j.compareBeat(known, had)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.written == nil {
		j.written = map[shim.Replica]int64{}
	}
	j.written[r] = parseBeat(has).written
	return back
}

// writtenBy is when the last heartbeat of a replica was stored, as far as this process knows; 0 for never.
func (j *clockJumps) writtenBy(r shim.Replica) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.written[r]
}

// compareBeat compares the heartbeat that a replica has with the last one that it was known to
// have written before that was asked for, and reports whether Redis went back.
func (j *clockJumps) compareBeat(known int64, has string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	back := parseBeat(has).written < known
	if back {
		j.jumped = time.Now()
	}
	return back
}

// isOver reports whether the last jump is longer ago than this.
func (j *clockJumps) isOver(d time.Duration) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.jumped.IsZero() || time.Since(j.jumped) >= d
}
