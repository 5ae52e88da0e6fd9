package budget

import (
	"runtime"
	"sync"
)

// Long is the size in bytes from which messages are processed in turns. To parse a MiB takes more
// than a millisecond.
const Long = 256 << 10

// turns lets each owner process long messages on half the processors only. Go lets a goroutine run for 10 ms,
// and looks at the network when all others rest: if long messages kept all processors busy, each step of a
// short one would wait for that.
//
// A waiter can do without a timeout and a second way to wake up: a turn is processor time and never blocks,
// and an owner has only as many waiting messages as it may hold bytes.
type turns struct {
	most int // of each owner

	mu     sync.Mutex
	owners map[string]*line
}

// line has the turns of one owner.
type line struct {
	taken int
	begin []chan struct{} // of the waiters; closed when it is their turn
}

func newTurns() turns {
	return turns{most: max(1, runtime.GOMAXPROCS(0)/2), owners: make(map[string]*line)}
}

// InTurn calls f, which processes n bytes of a message, when the hold has its turn among those of its owner.
// The others wait meanwhile, so f must not block, least of all for another turn. Short messages, and those of
// holds without an owner, are processed at once.
func (h *Hold) InTurn(n int, f func()) {
	if h != nil && h.owner != "" && n >= Long {
		t := &h.budget.turns
		t.take(h.owner)
		defer t.give(h.owner)
	}
	f()
}

func (t *turns) take(owner string) {
	t.mu.Lock()
	l := t.owners[owner]
	if l == nil {
		l = &line{}
		t.owners[owner] = l
	}
	if l.taken < t.most {
		l.taken++
		t.mu.Unlock()
		return
	}
	begin := make(chan struct{})
	l.begin = append(l.begin, begin)
	t.mu.Unlock()
	<-begin
}

// give ends a turn of an owner, and hands it to the longest waiter.
func (t *turns) give(owner string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.owners[owner]
	if len(l.begin) > 0 {
		close(l.begin[0])
		l.begin = l.begin[1:]
		return
	}
	if l.taken--; l.taken == 0 {
		delete(t.owners, owner)
	}
}
