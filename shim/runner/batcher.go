package runner

import (
	"encoding/json"
	"slices"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/content"
	"taskgate/shim/node"
)

// Bounds of the unstored pieces of one run, in bytes: mostEarly of those from before the handle, which no room is set
// aside for, and mostWaiting of those that come while the store is down.
const (
	mostEarly   = 64 << 10
	mostWaiting = 1 << 20
)

// mostKept bounds the batches of one run that are kept although they are stored, in bytes: a failover
// may lose the newest (design.md 0.20).
const mostKept = 64 << 10

// batcher gathers the pieces of a run into batches, and holds them until they are in the store. The
// first piece of a burst goes at once, then one batch per interval, or sooner when enough has gathered
// (design.md 0.19).
//
// Pieces over a bound are left out, and readers get a block that says so in their place. The batcher
// belongs to an outbox, which guards it.
type batcher struct {
	shim.Partials

	open  []json.RawMessage // pieces before their batch
	queue []entry           // batches that may still be unstored, in order: they follow the stored ones
	bytes int64             // of both
	kept  []entry           // stored batches before them that are kept for a while
	keeps int64             // bytes of them

	made   int   // batches closed so far
	total  int64 // bytes of all pieces taken
	missed int   // pieces left out since the last one that was taken
	full   bool  // all further pieces are left out

	last time.Time // when the last batch was closed
}

// entry is a batch on its way to the store.
type entry struct {
	shim.Batch
	checkpoint json.RawMessage // where to resume after its last piece, nil if unknown
	size       int64
	at         time.Time // when it was stored last
}

// Reasons why pieces are left out.
const (
	whyFull  = "the limit for this task is reached"
	whyKept  = "what is kept for this caller, or for all, is at its limit"
	whyStore = "they came faster than they could be stored"
)

// addPiece takes a piece, or leaves it out. At most so many bytes are unstored, and hasRoom reports whether there is room
// for so many bytes of all pieces.
func (b *batcher) addPiece(piece json.RawMessage, most int64, hasRoom func(all int64) bool) {
	if b.full {
		return
	}
	size := int64(len(piece))
	switch {
	case b.isExhausted(size):
		b.full = true
		b.pushPiece(content.LeftOut(0, whyFull))
		return
	case b.bytes+size > most:
		b.missed++
		return
	case !hasRoom(b.total + size):
		b.full = true
		b.pushPiece(content.LeftOut(0, whyKept))
		return
	}
	b.sayMissed()
	b.pushPiece(piece)
}

// sayMissed adds a block for the pieces that were left out since the last one. At the limit, the
// limit's block says so.
func (b *batcher) sayMissed() {
	if b.missed > 0 && !b.full {
		b.pushPiece(content.LeftOut(b.missed, whyStore))
		b.missed = 0
	}
}

// isExhausted reports whether a piece of this size exceeds the bounds of the task. It keeps one batch
// free to say so.
func (b *batcher) isExhausted(size int64) bool {
	return b.Most > 0 && len(b.open) == 0 && b.made >= b.Most-1 ||
		b.MostBytes > 0 && b.total+size > b.MostBytes
}

func (b *batcher) pushPiece(piece json.RawMessage) {
	b.open = append(b.open, piece)
	b.bytes += int64(len(piece))
	b.total += int64(len(piece))
}

// closeOpen makes batches of the open pieces; checkpoint is where to resume after them.
func (b *batcher) closeOpen(checkpoint json.RawMessage) {
	if len(b.open) == 0 {
		return
	}
	b.last = time.Now()
	most := len(b.open)
	if b.Interval <= 0 {
		most = 1
	}
	for pieces := range slices.Chunk(b.open, most) {
		var e entry
		for _, p := range pieces {
			e.size += int64(len(p))
		}
		e.Content = jsonrpc.Array(pieces)
		b.queue = append(b.queue, e)
		b.made++
	}
	b.queue[len(b.queue)-1].checkpoint = checkpoint
	b.open = nil
}

// hasWaiting reports whether there are batches or pieces to write.
func (b *batcher) hasWaiting() bool { return len(b.open)+len(b.queue) > 0 }

// nextBatch returns how long the next batch still has to wait.
func (b *batcher) nextBatch() time.Duration {
	var open int
	for _, p := range b.open {
		open += len(p)
	}
	if len(b.queue) > 0 || b.Bytes > 0 && open >= b.Bytes {
		return 0
	}
	return max(0, b.Interval-time.Since(b.last))
}

// nextPortion returns how many batches of the queue go into one append.
func (b *batcher) nextPortion() int {
	n, size := 0, int64(0)
	for n < len(b.queue) && (n == 0 || size+b.queue[n].size <= appendBytes) {
		size += b.queue[n].size
		n++
	}
	return n
}

// lastCheckpoint returns the newest checkpoint of the first n batches.
func (b *batcher) lastCheckpoint(n int) json.RawMessage {
	for n--; n >= 0; n-- {
		if b.queue[n].checkpoint != nil {
			return b.queue[n].checkpoint
		}
	}
	return nil
}

// advanceBy notes that the first n batches of the queue are in the store.
func (b *batcher) advanceBy(n int) {
	for _, e := range b.queue[:n] {
		b.bytes -= e.size
		e.at = time.Now()
		b.kept = append(b.kept, e)
		b.keeps += e.size
	}
	b.queue = slices.Delete(b.queue, 0, n)
	drop := 0
	for drop < len(b.kept) && (b.keeps > mostKept || time.Since(b.kept[drop].at) > node.DefaultSettle) {
		b.keeps -= b.kept[drop].size
		drop++
	}
	b.kept = slices.Delete(b.kept, 0, drop)
}

// rewindBy notes that the store has lost the last n batches. It returns how many of them are still here.
func (b *batcher) rewindBy(n int) int {
	n = min(n, len(b.kept))
	from := len(b.kept) - n
	again := slices.Clone(b.kept[from:])
	for _, e := range again {
		b.bytes += e.size
		b.keeps -= e.size
	}
	b.kept = b.kept[:from]
	b.queue = append(again, b.queue...)
	return n
}

func batchesOf(entries []entry) []shim.Batch {
	out := make([]shim.Batch, len(entries))
	for i, e := range entries {
		out[i] = e.Batch
	}
	return out
}

// appendBytes bounds one append, except for a single larger batch.
const appendBytes = 256 << 10
