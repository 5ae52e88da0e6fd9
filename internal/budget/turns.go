package budget

import (
	"runtime"
	"slices"
	"sync"
)

// Long is the size in bytes from which a message is gone through in turns. To parse a MiB takes
// about a millisecond.
const Long = 256 << 10

// turns lets only half the processors go through long messages at a time. Go lets a goroutine
// run for 10 ms, and looks for what has come over the network when nothing else is to be run: if
// all processors were busy with long messages, each step of a short one would wait for that.
//
// Whoever waits needs no second way to wake up, and no end of its patience: a turn is processor
// time and waits for nothing, and there are no more waiting messages than bytes may be held.
type turns struct {
	mu    sync.Mutex
	free  int
	lines []*line // those who wait; the owner at the front is the next
}

// line are those of one owner who wait.
type line struct {
	owner string
	begin []chan struct{} // closed when it is the turn of the first
}

func newTurns() turns { return turns{free: max(1, runtime.GOMAXPROCS(0)/2)} }

// InTurn calls f, which goes through n bytes of a message, when it is the turn of the hold's
// owner. Owners take turns. Others wait meanwhile, so f must not wait for anything, least of all
// for another turn. Short messages need no turn.
func (h *Hold) InTurn(n int, f func()) {
	if h != nil && n >= Long {
		t := &h.budget.turns
		t.take(h.owner)
		defer t.give(h.owner)
	}
	f()
}

func (t *turns) take(owner string) {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return
	}
	i := slices.IndexFunc(t.lines, func(l *line) bool { return l.owner == owner })
	if i < 0 {
		i = len(t.lines)
		t.lines = append(t.lines, &line{owner: owner})
	}
	begin := make(chan struct{})
	t.lines[i].begin = append(t.lines[i].begin, begin)
	t.mu.Unlock()
	<-begin
}

// give ends a turn of an owner, and hands it to the next one.
func (t *turns) give(owner string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == 0 {
		t.free++
		return
	}
	if t.lines[0].owner == owner { // it has just had one
		t.lines = append(t.lines[1:], t.lines[0])
	}
	next := t.lines[0]
	close(next.begin[0])
	next.begin = next.begin[1:]
	if t.lines = t.lines[1:]; len(next.begin) > 0 {
		t.lines = append(t.lines, next)
	}
}
