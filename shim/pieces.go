package shim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"taskgate/internal/work"
	"taskgate/shim/content"
)

// keepsHints reports whether readers of the call see hints besides the result.
func (c Call) keepsHints() bool { return c.Partials && (c.Handle || c.Demand) }

// pieceWriter writes to the record, in batches, the pieces that a server says while its call runs. At
// most one goroutine writes at a time, so that batches arrive in order. The run owns it, and run.mu
// guards it. It is nil if readers get only the result.
type pieceWriter struct {
	run     *run
	batcher               // the unstored pieces
	due     bool          // a timer will have the next batch written
	writing chan struct{} // closed after the current write; nil between writes
	stopped bool          // the run has ended: writing is over
	halted  chan struct{} // closed by haltWriting
}

// newPieceWriter returns the writer of a run, or nil if readers get only the result: hints are kept
// only if the client opted in.
func newPieceWriter(r *run) *pieceWriter {
	c, p := &r.call, r.policy.Partials
	if !c.Handle && !c.Demand || !p.Content && !c.Partials {
		return nil
	}
	return &pieceWriter{run: r, batcher: batcher{Partials: p}, halted: make(chan struct{})}
}

// resumeAt goes on with a stream that the store has up to p.
func (w *pieceWriter) resumeAt(p Position) {
	if w != nil {
		w.at, w.made = p, int(p)
	}
}

// gatherProgress takes a piece of content, or a hint (protocol.md 6.4.2). If messages are content,
// progress without one is skipped: its numbers are not part of any result. run.mu is held.
func (w *pieceWriter) gatherProgress(p Progress) {
	switch {
	case w == nil:
	case w.Content && p.Message != "" && !p.Status:
		w.gatherPiece(content.Text(p.Message))
	case !w.Content && w.run.policy.FoldProgress && w.run.call.keepsHints():
		w.gatherPiece(content.Progress(p.Message, p.Progress, p.Total))
	}
}

// gatherPiece takes a piece. run.mu is held.
func (w *pieceWriter) gatherPiece(piece json.RawMessage) {
	if w.run.ended || w.stopped {
		return
	}
	w.addPiece(piece)
	w.scheduleWrite()
}

// scheduleWrite has the gathered pieces written when they are due. run.mu is held.
func (w *pieceWriter) scheduleWrite() {
	r := w.run
	if r.record == nil || w.stopped || w.writing != nil || !w.hasWaiting() {
		return
	}
	if d := w.nextDelay(); d > 0 {
		if !w.due {
			w.due = true
			r.core.life.later(d, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				w.due = false
				w.scheduleWrite()
			})
		}
		return
	}
	w.closeBatch()
	w.writing = make(chan struct{})
	done := w.writing
	if !r.core.life.work.Go(func() { w.writeQueue(done) }) {
		w.writing = nil
	}
}

// closeBatch makes a batch of the gathered pieces, with the checkpoint that goes with all pieces so
// far, if the store may lack it. run.mu is held.
func (w *pieceWriter) closeBatch() {
	if len(w.open) == 0 {
		return
	}
	var checkpoint json.RawMessage
	if w.run.unsaved {
		checkpoint, w.run.unsaved = w.run.checkpoint, false
	}
	w.closeOpen(checkpoint)
}

// writeQueue appends the closed batches, oldest first. While the store is unavailable the same append
// is repeated, at the same position, and new pieces gather.
func (w *pieceWriter) writeQueue(done chan struct{}) {
	defer close(done)
	r := w.run
	for d := retryFirst; ; {
		r.mu.Lock()
		n := w.nextPortion()
		if n == 0 || w.stopped {
			w.writing = nil
			w.scheduleWrite()
			r.mu.Unlock()
			return
		}
		batches, checkpoint, at, lease := batchesOf(w.queue[:n]), w.lastCheckpoint(n), w.at, r.record.lease
		r.mu.Unlock()

		err := w.appendBatches(lease, at, checkpoint, batches)
		switch {
		case err == nil:
			d = retryFirst
			at += Position(len(batches))
			r.mu.Lock()
			w.advanceTo(at) // a checkpoint may have taken them along
			r.mu.Unlock()
		case errors.Is(err, ErrPosition):
			w.goBack(at)
			work.PauseUntil(w.halted, spreadPause(d))
		case errors.Is(err, ErrUnavailable), errors.Is(err, ErrNotFound): // the end of the task writes them, if they are still left then
			if errors.Is(err, ErrNotFound) { // the position is too far once the record is there again
				_, _ = withPatience(r.core.life.writes, r.core, r.record.restoreTask)
			}
			work.PauseUntil(w.halted, spreadPause(d))
			d = min(2*d, retryMost)
		default:
			w.giveUp(err, lease)
		}
	}
}

// appendBatches makes one attempt.
func (w *pieceWriter) appendBatches(lease Lease, at Position, checkpoint json.RawMessage, batches []Batch) error {
	ctx, stop := context.WithTimeoutCause(w.run.core.life.writes, opTimeout, ErrUnavailable)
	defer stop()
	err := w.run.core.store.Append(ctx, w.run.record.id, lease, at, checkpoint, batches...)
	if err != nil && errors.Is(context.Cause(ctx), ErrUnavailable) {
		return ErrUnavailable
	}
	return err
}

// giveUp stops writing for good: the task has ended, or has another runner.
func (w *pieceWriter) giveUp(err error, under Lease) {
	r := w.run
	if errors.Is(err, ErrLeaseLost) && under != r.record.currentLease() {
		return // the run has another lease by now
	}
	r.mu.Lock()
	w.full, w.stopped, w.open, w.queue, w.bytes = true, true, nil, nil, 0
	r.mu.Unlock()
	r.record.obeyRefusal(err, under, Task{})
}

// goBack reads how much the store still has of a stream whose end it has lost, and writes the rest
// again as far as it is still here (design.md 0.20).
func (w *pieceWriter) goBack(at Position) {
	r := w.run
	t, err := r.core.readRecord(r.core.life.writes, r.record.id, Summary)
	if err != nil {
		return // the next attempt says the same
	}
	r.mu.Lock()
	whole := w.rewindTo(t.Position)
	r.mu.Unlock()
	if !whole {
		r.observed.logRun(slog.LevelWarn, "the store has lost partial results of a task", "had", at, "has", t.Position)
	}
}

// unstoredBatches closes the gathering batch, and returns the batches that may still be unstored, and
// their position. run.mu is held.
func (w *pieceWriter) unstoredBatches() ([]Batch, Position) {
	if w == nil {
		return nil, 0
	}
	w.closeBatch()
	return w.queuedBatches()
}

// noteStored notes that the record has the stream up to p, and goes on from there. run.mu is held.
func (w *pieceWriter) noteStored(p Position) {
	if w != nil {
		w.advanceTo(p)
		w.scheduleWrite()
	}
}

// drainPieces waits until all gathered pieces are stored: a checkpoint must not be stored ahead of the
// pieces before it, or a resumed stream would skip them.
func (w *pieceWriter) drainPieces(ctx context.Context) {
	if w == nil {
		return
	}
	r := w.run
	for {
		r.mu.Lock()
		if r.record == nil || w.stopped || !w.hasWaiting() {
			r.mu.Unlock()
			return
		}
		w.closeBatch() // whatever the interval: what is closed is written at once
		w.scheduleWrite()
		writing := w.writing
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

// haltWriting ends the writing and waits for the current write. Unstored pieces stay in the queue.
func (w *pieceWriter) haltWriting() {
	if w == nil {
		return
	}
	w.run.mu.Lock()
	if !w.stopped {
		w.stopped = true
		close(w.halted)
		w.sayMissed()
	}
	w.closeBatch()
	writing := w.writing
	w.run.mu.Unlock()
	if writing != nil {
		<-writing
	}
}

// addTail adds the unstored pieces to the change that ends the task: the tail and the final status are
// one step (design.md 0.19, P3). A cancelled task shows only its earlier pieces (P13). haltWriting has
// been called.
func (w *pieceWriter) addTail(c *Change) {
	if w != nil && c.To != Cancelled {
		c.Tail, c.At = w.queuedBatches()
	}
}

// takeRecent hands over, once, the batches that were stored before the queue and are still kept here.
// haltWriting has been called.
func (w *pieceWriter) takeRecent() []Batch {
	if w == nil {
		return nil
	}
	w.run.mu.Lock()
	defer w.run.mu.Unlock()
	recent := batchesOf(w.kept)
	w.kept, w.keeps = nil, 0
	return recent
}
