package budget

import (
	"runtime"
	"sync"
)

// Long is the size in bytes from which a message is gone through in turns. To parse a MiB takes
// more than a millisecond.
const Long = 256 << 10

// turns lets each owner go through long messages on half the processors only. Go lets a goroutine
// run for 10 ms, and looks for what has come over the network when nothing else is to be run: if
// all processors were busy with long messages, each step of a short one would wait for that.
//
// Whoever waits needs no second way to wake up, and no end of its patience: a turn is processor
// time and waits for nothing, and an owner has no more waiting messages than it may hold bytes.
type turns struct {
	most int // of each owner

	mu     sync.Mutex
	owners map[string]*line
}

// line is what one owner has of turns.
type line struct {
	taken int
	begin []chan struct{} // of those who wait; closed when it is their turn
}

func newTurns() turns {
	return turns{most: max(1, runtime.GOMAXPROCS(0)/2), owners: make(map[string]*line)}
}

// InTurn calls f, which goes through n bytes of a message, when it is the turn of the hold among
// those of its owner. These wait meanwhile, so f must not wait for anything, least of all for
// another turn. Short messages need no turn, and neither does a hold without an owner.
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

// give ends a turn of an owner, and hands it to the one who has waited longest.
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
