package redisstore

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"taskgate/shim"
)

// clockJumps notices that the clock of Redis has jumped ahead, as after a failover to a machine with another
// clock. The heartbeats of replicas that live may then have expired, until each replica has beaten again. So
// a replica counts as gone only once a whole expiry has passed since the jump, as after an outage (design.md
// 0.5).
//
// It also notices that Redis went back to an older state, after a failover or a restart from a snapshot: a
// replica finds an older heartbeat than the one that it has written. The heartbeats of the others are as old,
// so this counts as a jump, too.
type clockJumps struct {
	mu sync.Mutex
	// written is when each replica's last heartbeat was stored, as far as this process knows.
	written map[shim.Replica]int64
	base    time.Time     // our own clock, which does not jump, counts from here; zero at first
	seen    time.Duration // when the clock of Redis was last read, since base
	ahead   time.Duration // the time of Redis at base, at most, as that read showed it
	jumped  time.Time     // when it was last found to have jumped
	// back is the newest heartbeat that this process knew of when it found that Redis had gone back.
	back int64
}

const (
	// slightly is a jump that may be overlooked: heartbeats are renewed when two thirds of their expiry are
	// left.
	slightly = 100 * time.Millisecond
	// slew says how much faster a clock may run while it is corrected in small steps: by one part in slew.
	slew = 10
)

// observeTime takes a time in ms that Redis told in answer to a command that began at begin. The answer may
// have taken long, so only a certain jump counts.
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

// takeBeat takes the heartbeat that a replica had when it beat, and its new one. It reports whether Redis
// went back; see compareBeat.
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

// compareBeat compares the heartbeat of a replica in Redis with the last one that the replica was known to
// have written when the read began. It reports whether Redis went back.
func (j *clockJumps) compareBeat(known int64, has string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	back := parseBeat(has).written < known
	if back {
		j.jumped, j.back = time.Now(), known
	}
	return back
}

// wentBack is the newest heartbeat that this process knew of when it found that Redis had gone back; 0 for never.
func (j *clockJumps) wentBack() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.back
}

// isOver reports whether the last jump is at least d ago.
func (j *clockJumps) isOver(d time.Duration) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.jumped.IsZero() || time.Since(j.jumped) >= d
}

// beat is a heartbeat: until when it counts, its expiry, and when it was written, by the clock of Redis.
type beat struct {
	until   time.Time
	ttl     time.Duration
	written int64 // in ms
}

// parseBeat reads a heartbeat: three numbers of milliseconds. A missing number is 0.
func parseBeat(entry string) beat {
	var n [3]int64
	for i, word := range strings.Fields(entry) {
		if i < len(n) {
			n[i], _ = strconv.ParseInt(word, 10, 64)
		}
	}
	return beat{time.UnixMilli(n[0]), time.Duration(n[1]) * time.Millisecond, n[2]}
}

// dead is a replica that is gone.
type dead struct {
	name  shim.Replica
	entry string // its heartbeat as it was found
	any   bool   // gone for so long that any upstream will do
	past  bool   // gone for so long that it may be forgotten
}

// orphan is a task that a replica tries to adopt; op names the attempt. doubted is that of shim.Task.
type orphan struct {
	id      shim.ID
	old     shim.Replica
	op      string
	doubted bool
}

// orphanage keeps the adoptions whose reply was lost. Such a task may belong to its new replica, which is
// alive but unaware of it, so no other replica would ever adopt it: the next Adopt asks again.
type orphanage struct {
	mu       sync.Mutex
	doubtful map[shim.Replica][]orphan
}

// takeDoubtful removes and returns the attempts of a replica that are in doubt.
func (o *orphanage) takeDoubtful(r shim.Replica) []orphan {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := o.doubtful[r]
	delete(o.doubtful, r)
	return list
}

// putDoubtful adds to them.
func (o *orphanage) putDoubtful(r shim.Replica, list ...orphan) {
	if len(list) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.doubtful == nil {
		o.doubtful = map[shim.Replica][]orphan{}
	}
	o.doubtful[r] = append(o.doubtful[r], list...)
}
