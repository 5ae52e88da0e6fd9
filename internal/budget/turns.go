package budget

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sync/semaphore"
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
	most int64 // of each owner

	mu     sync.Mutex
	owners map[string]*line
}

// line has the turns of one owner, for as long as somebody uses it.
type line struct {
	users int
	turns *semaphore.Weighted
}

func newTurns() turns {
	return turns{most: max(1, int64(runtime.GOMAXPROCS(0)/2)), owners: make(map[string]*line)}
}

// InTurn calls f, which processes n bytes of a message, when the hold has its turn among those of its owner.
// The others wait meanwhile, so f must not block, least of all for another turn. Short messages, and those of
// holds without an owner, are processed at once.
func (h *Hold) InTurn(n int, f func()) {
	if h != nil && h.owner != "" && n >= Long {
		defer h.budget.turns.take(h.owner)()
	}
	f()
}

// take waits for a turn of an owner. The caller ends it with give.
func (t *turns) take(owner string) (give func()) {
	t.mu.Lock()
	l := t.owners[owner]
	if l == nil {
		l = &line{turns: semaphore.NewWeighted(t.most)}
		t.owners[owner] = l
	}
	l.users++
	t.mu.Unlock()
	_ = l.turns.Acquire(context.Background(), 1) // it waits in order, and fails only at the end of its context
	return func() {
		l.turns.Release(1)
		t.mu.Lock()
		defer t.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(t.owners, owner)
		}
	}
}
