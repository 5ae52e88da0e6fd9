package shim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"

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

// writeQueue writes the closed batches, oldest first, until the queue is empty or the writing is halted.
// After an error the batches that are left are written again, and new pieces gather. An error that takes
// the task from this runner also ends the run, which halts the writing.
func (w *pieceWriter) writeQueue(done chan struct{}) {
	defer close(done)
	r := w.run
	for d := retryFirst; ; {
		r.mu.Lock()
		if len(w.queue) == 0 || w.stopped {
			w.writing = nil
			w.scheduleWrite()
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()

		at, err := w.writePortion()
		if err == nil {
			d = retryFirst
			continue
		}
		if errors.Is(err, ErrPosition) {
			w.goBack(at)
		}
		work.PauseUntil(w.halted, spreadPause(d))
		d = min(2*d, retryMost)
	}
}

// writePortion writes the oldest batches, and returns their position. It gives up after opTimeout.
func (w *pieceWriter) writePortion() (at Position, err error) {
	r := w.run
	ctx, stop := context.WithTimeoutCause(r.core.life.writes, opTimeout, ErrUnavailable)
	defer stop()
	t, err := r.record.applyChange(ctx, func() Change {
		r.mu.Lock()
		defer r.mu.Unlock()
		at = w.at
		return w.portionChange(w.nextPortion())
	})
	if err == nil {
		r.mu.Lock()
		w.advanceTo(t.Position)
		r.mu.Unlock()
	}
	return at, err
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

// portionChange returns the change that stores the first n batches, with the checkpoint behind them. run.mu
// is held.
func (w *pieceWriter) portionChange(n int) Change {
	return Change{Tail: batchesOf(w.queue[:n]), At: w.at, Checkpoint: w.lastCheckpoint(n)}
}

// addUnstored adds all pieces so far to a change, with the checkpoint behind them if it has none. run.mu is
// held.
func (w *pieceWriter) addUnstored(c *Change) {
	if w == nil {
		return
	}
	w.closeBatch()
	all := w.portionChange(len(w.queue))
	c.Tail, c.At = all.Tail, all.At
	if c.Checkpoint == nil {
		c.Checkpoint = all.Checkpoint
	}
}

// noteStored notes that the record has the stream up to p, and goes on from there. run.mu is held.
func (w *pieceWriter) noteStored(p Position) {
	if w != nil {
		w.advanceTo(p)
		w.scheduleWrite()
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

// addTail adds the unstored pieces to the last change of the run: the tail and the final status are one
// step (design.md 0.19, P3). A cancelled task shows only its earlier pieces (P13). haltWriting has been
// called.
func (w *pieceWriter) addTail(c *Change) {
	if w != nil && c.To != Cancelled {
		c.Tail, c.At = batchesOf(w.queue), w.at
	}
}

// withRecent returns the last change with the pieces before its tail as far as they are kept, for a store
// that loses them. haltWriting has been called.
func (w *pieceWriter) withRecent(c Change) Change {
	if w != nil && c.To != Cancelled {
		c.Tail, c.At = slices.Concat(batchesOf(w.kept), c.Tail), c.At-Position(len(w.kept))
	}
	return c
}
