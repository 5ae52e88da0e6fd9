package sim

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Clock watches from outside of the bubble whether virtual time goes on.
type Clock struct{ ticks atomic.Int64 }

// Tick counts virtual time, in the bubble, until stop is closed.
func (c *Clock) Tick(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Second):
			c.ticks.Add(1)
		}
	}
}

// Watch calls stands, outside of the bubble and with the words why, if the clock stands still for so long. It ends when
// stop is closed.
func (c *Clock) Watch(stop <-chan struct{}, patience time.Duration, stands func(why string)) {
	for before := int64(-1); ; {
		select {
		case <-stop:
			return
		case <-time.After(patience):
		}
		now := c.ticks.Load()
		if now == before {
			stands(explain(stacks()))
			return
		}
		before = now
	}
}

// The mutex that a goroutine waits for, and the values that its functions have got.
var (
	waitedFor = regexp.MustCompile(`Slow\(0x([0-9a-f]+)`)
	argument  = regexp.MustCompile(`[({ ]0x([0-9a-f]{6,})`)
)

// explain says which goroutines wait for a mutex, and which ones may have it while they wait for something else: those
// that work on the value with that mutex.
func explain(dump string) string {
	var waiters, others []string
	for g := range strings.SplitSeq(dump, "\n\n") {
		switch head, _, _ := strings.Cut(g, "\n"); {
		case !strings.Contains(head, "synctest bubble"):
		case strings.Contains(head, "Mutex."):
			waiters = append(waiters, g)
		case strings.Contains(head, "durable"):
			others = append(others, g)
		}
	}
	if len(waiters) == 0 {
		return "nobody waits for a mutex:\n" + dump
	}
	var b strings.Builder
	for _, g := range waiters {
		fmt.Fprintf(&b, "waits for a mutex:\n%s\n", g)
		m := waitedFor.FindStringSubmatch(g)
		for _, o := range others {
			if m != nil && worksOn(o, address(m[1])) {
				fmt.Fprintf(&b, "which this one may hold while it waits:\n%s\n", o)
			}
		}
	}
	return b.String()
}

// worksOn reports whether a function of a goroutine has got a value that may have the mutex in it.
func worksOn(g string, mutex uint64) bool {
	for _, m := range argument.FindAllStringSubmatch(g, -1) {
		if a := address(m[1]); a <= mutex && mutex < a+4096 {
			return true
		}
	}
	return false
}

func address(hex string) uint64 {
	a, _ := strconv.ParseUint(hex, 16, 64) // the pattern has digits only
	return a
}
