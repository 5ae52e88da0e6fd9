package shim

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"
)

// appendBytes bounds what one append carries, but for a single batch that is larger.
const appendBytes = 256 << 10

// hints reports whether a call shows what its tool says besides the result.
func (c Call) hints() bool { return c.Partials && !c.Streaming && (c.Handle || c.Demand) }

// gatherProgress takes a piece of content, or a hint (protocol.md 6.4.2). Where
// messages are content, progress without one is no piece: its numbers are not part
// of any result. r.mu is held.
func (r *run) gatherProgress(p Progress) {
	switch {
	case r.policy.Partials.Content && p.Message != "":
		r.gather(textBlock(p.Message, "", nil))
	case !r.policy.Partials.Content && r.policy.FoldProgress && r.call.hints():
		r.gather(progressBlock(p))
	}
}

// gatherLog takes a hint, where log messages are such. r.mu is held.
func (r *run) gatherLog(l Log) {
	if r.policy.Partials.Logs && r.call.hints() {
		r.gather(logBlock(l))
	}
}

// gather takes a piece. r.mu is held.
func (r *run) gather(piece json.RawMessage) {
	b := r.batcher
	if b == nil || r.ended {
		return
	}
	if b.add(piece) && b.segments {
		r.message = "partial results have reached their limit; the rest comes with the result"
		r.fold()
	}
	r.stir()
}

// stir sees to it that what has gathered is written when it is due: at most one
// writer at a time, so that batches arrive in order. r.mu is held.
func (r *run) stir() {
	b := r.batcher
	if b == nil || r.task == nil || b.stopped || b.writing != nil || !b.waiting() {
		return
	}
	if d := b.delay(); d > 0 {
		if b.due == nil {
			b.due = r.s.later(d, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				b.due = nil
				r.stir()
			})
		}
		return
	}
	b.clearDue()
	r.closeBatch()
	b.writing = make(chan struct{})
	done := b.writing
	if !r.s.work.Go(func() { r.writeBatches(done) }) {
		b.writing = nil
	}
}

// clearDue forgets that a batch was going to be due.
func (b *batcher) clearDue() {
	if b.due != nil {
		b.due.Stop()
		b.due = nil
	}
}

// closeBatch makes a batch of what has gathered, with the checkpoint that goes with
// all pieces so far, if the store may not have it yet. r.mu is held.
func (r *run) closeBatch() {
	if len(r.batcher.open) == 0 {
		return
	}
	var mark json.RawMessage
	if r.moved {
		mark, r.moved = r.mark, false
	}
	r.batcher.close(mark)
}

// writeBatches appends what is closed, oldest first. While the store is unavailable
// the same append is repeated, at the same position, and new pieces gather.
func (r *run) writeBatches(done chan struct{}) {
	defer close(done)
	b := r.batcher
	for pause := retryFirst; ; {
		r.mu.Lock()
		n := b.portion()
		if n == 0 || b.stopped {
			b.writing = nil
			r.stir()
			r.mu.Unlock()
			return
		}
		batches, mark, at, lease := batchesOf(b.queue[:n]), b.lastMark(n), b.at, r.task.lease
		r.mu.Unlock()

		err := r.append(lease, at, mark, batches)
		switch {
		case err == nil:
			pause = retryFirst
			r.mu.Lock()
			b.stored(n)
			r.mu.Unlock()
		case errors.Is(err, ErrUnavailable):
			r.linger(pause)
			pause = min(2*pause, retryMost)
		case errors.Is(err, ErrPosition):
			r.goBack(at)
			r.linger(pause)
		default:
			r.giveUp(err, lease)
		}
	}
}

// append makes one attempt.
func (r *run) append(lease Lease, at Position, mark json.RawMessage, batches []Batch) error {
	ctx, stop := context.WithTimeoutCause(r.s.writes, opTimeout, ErrUnavailable)
	defer stop()
	err := r.s.store.Append(ctx, r.task.id, lease, at, mark, batches...)
	if err != nil && errors.Is(context.Cause(ctx), ErrUnavailable) {
		return ErrUnavailable
	}
	return err
}

// portion is how many batches of the queue go into one append.
func (b *batcher) portion() int {
	n, size := 0, int64(0)
	for n < len(b.queue) && (n == 0 || size+b.queue[n].size <= appendBytes) {
		size += b.queue[n].size
		n++
	}
	return n
}

// lastMark is the newest checkpoint of the first n batches.
func (b *batcher) lastMark(n int) json.RawMessage {
	for n--; n >= 0; n-- {
		if b.queue[n].mark != nil {
			return b.queue[n].mark
		}
	}
	return nil
}

// linger pauses before the next attempt, or until the run has ended.
func (r *run) linger(d time.Duration) {
	timer := time.NewTimer(d/2 + rand.N(d))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.batcher.wake:
	case <-r.s.writes.Done():
	}
}

// giveUp stops writing for good: the task has ended, or is another's.
func (r *run) giveUp(err error, under Lease) {
	if errors.Is(err, ErrLeaseLost) && under != r.lease() {
		return // the run has another lease by now
	}
	r.mu.Lock()
	b := r.batcher
	b.full, b.stopped, b.open, b.queue, b.bytes = true, true, nil, nil, 0
	r.mu.Unlock()
	r.lost(err, under)
}

// goBack finds out what the store has of a stream that it has lost the end of, and
// writes again from there what is still here (design.md 0.20).
func (r *run) goBack(at Position) {
	ctx, stop := context.WithTimeoutCause(r.s.writes, opTimeout, ErrUnavailable)
	defer stop()
	t, err := r.s.store.Get(ctx, r.task.id, Summary)
	if err != nil {
		return // the next attempt says the same
	}
	r.mu.Lock()
	whole := r.batcher.rewind(t.Position)
	r.mu.Unlock()
	if !whole {
		r.s.log.Warn("the store has lost partial results of a task", "task", r.task.id, "had", at, "has", t.Position)
	}
}

// drainBatches waits until all that has gathered is stored: a checkpoint must not
// be stored ahead of the pieces before it, or a resumed stream would skip them.
func (r *run) drainBatches(ctx context.Context) {
	b := r.batcher
	if b == nil {
		return
	}
	for {
		r.mu.Lock()
		if r.task == nil || b.stopped || !b.waiting() {
			r.mu.Unlock()
			return
		}
		r.closeBatch() // whatever the interval: what is closed is written at once
		r.stir()
		writing := b.writing
		r.mu.Unlock()
		if writing == nil {
			return // the shim has been closed
		}
		select {
		case <-writing:
		case <-ctx.Done():
			return
		}
	}
}

// haltBatches ends the writing and returns once nothing of it is under way. What is
// not stored stays in the queue.
func (r *run) haltBatches() {
	b := r.batcher
	if b == nil {
		return
	}
	r.mu.Lock()
	if !b.stopped {
		b.stopped = true
		close(b.wake)
	}
	b.clearDue()
	r.closeBatch()
	writing := b.writing
	r.mu.Unlock()
	if writing != nil {
		<-writing
	}
}
