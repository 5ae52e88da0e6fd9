package upstream

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
)

// numbers are the ids of requests in sessions that another client has opened, and may have numbered requests in. A client
// takes them from blocks that the store gives to nobody else. They lie above the ids that clients begin with in sessions
// of their own (Config.FirstID). Sessions of replicas of the version before may have texts as ids, too.
//
// A client that the store gave no block begins at a random number: two requests of one session then have the same id
// with a chance of one in a million, and a session of another replica can hardly be found without the store.
type numbers struct {
	log *slog.Logger

	mu        sync.Mutex
	next, end int64
	given     bool // by the store
}

const (
	numbersFrom  = 1 << 30 // up to 2^31: some servers read only numbers of that size
	numbersBlock = 1 << 18
)

// nextNumber returns the next number.
func (n *numbers) nextNumber() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == n.end {
		n.next, n.end, n.given = numbersFrom+rand.Int64N(numbersFrom-1), 2*numbersFrom, false
	}
	n.next++
	return n.next - 1
}

// takeBlock takes a block from the store, unless half of the last one is left.
func (n *numbers) takeBlock(ctx context.Context, store Sessions) {
	n.mu.Lock()
	enough := n.given && n.end-n.next > numbersBlock/2
	n.mu.Unlock()
	if enough || store == nil {
		return
	}
	block, err := store.TakeNumber(ctx)
	if err != nil {
		n.log.Debug("the store gave no numbers for the ids of requests; they begin at random", "err", err)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next = numbersFrom + block%(numbersFrom/numbersBlock)*numbersBlock
	n.end, n.given = n.next+numbersBlock, true
}
