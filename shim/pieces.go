package shim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"taskgate/internal/work"
	"taskgate/shim/content"
)

// keepsPieces reports whether readers of the call see pieces besides the result: hints are kept only if the
// client opted in.
func (c Call) keepsPieces(p Partials) bool {
	return (c.Handle || c.Demand) && (p.Content || c.Partials)
}

// gatherProgress takes a piece of content, or a hint (protocol.md 6.4.2). If messages are content,
// progress without one is skipped: its numbers are not part of any result. run.mu is held.
func (o *outbox) gatherProgress(p Progress) {
	switch {
	case !o.gathers, o.run.ended, o.stopped:
	case o.Content && p.Message != "" && !p.Status:
		o.gatherPiece(content.Text(p.Message))
	case !o.Content && o.run.policy.FoldProgress:
		o.gatherPiece(content.Progress(p.Message, p.Progress, p.Total))
	}
}

// gatherPiece takes a piece. run.mu is held.
func (o *outbox) gatherPiece(piece json.RawMessage) {
	o.addPiece(piece)
	o.scheduleWrite()
}

// nextDelay returns how long the next write still has to wait; ok is false if nothing is new.
func (o *outbox) nextDelay() (d time.Duration, ok bool) {
	if o.fresh && !o.run.ended {
		d, ok = max(0, time.Until(o.next)), true
	}
	if !o.hasWaiting() {
		return d, ok
	}
	if piece := o.nextBatch(); !ok || piece < d {
		d = piece
	}
	return d, true
}

// scheduleWrite has what is new written when it is due. run.mu is held.
func (o *outbox) scheduleWrite() {
	r := o.run
	d, ok := o.nextDelay()
	if !ok || r.record == nil || o.stopped || o.writing != nil {
		return
	}
	if d > 0 {
		if o.due != nil {
			o.due.Stop()
		}
		o.due = r.core.life.later(d, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			o.scheduleWrite()
		})
		return
	}
	o.writing = make(chan struct{})
	done := o.writing
	if !r.core.life.work.Go(func() { o.writeNews(done) }) {
		o.writing = nil
	}
}

// closeBatch makes a batch of the gathered pieces, with the checkpoint that goes with all pieces so
// far, if the store may lack it. run.mu is held.
func (o *outbox) closeBatch() {
	if len(o.open) == 0 {
		return
	}
	var checkpoint json.RawMessage
	if o.run.unsaved {
		checkpoint, o.run.unsaved = o.run.checkpoint, false
	}
	o.closeOpen(checkpoint)
}

// writeNews writes what is due, until nothing is, or the writing is halted. After an error it is written
// again, and new pieces gather. An error that takes the task from this runner also ends the run, which
// halts the writing.
func (o *outbox) writeNews(done chan struct{}) {
	defer close(done)
	r := o.run
	for d := retryFirst; ; {
		r.mu.Lock()
		if delay, ok := o.nextDelay(); !ok || delay > 0 || o.stopped {
			o.writing = nil
			o.scheduleWrite()
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()

		if o.writeOnce() == nil {
			d = retryFirst
			continue
		}
		work.PauseUntil(o.halted, spreadPause(d))
		d = min(2*d, retryMost)
	}
}

// writeOnce writes what is due, and gives up after opTimeout.
func (o *outbox) writeOnce() error {
	r := o.run
	var c Change
	ctx, stop := context.WithTimeoutCause(r.core.life.writes, opTimeout, ErrUnavailable)
	defer stop()
	t, err := r.record.applyChange(ctx, func() Change {
		c = o.dueChange()
		return c
	})
	if errors.Is(err, ErrPosition) {
		o.goBack(c.At)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.StatusMessage != nil {
		// The pause varies a little: many tasks that begin together would otherwise go on to be written
		// together, once per interval.
		every := o.interval()
		o.next = time.Now().Add(every + rand.N(every/foldSpread))
	}
	if err != nil {
		o.fresh = o.fresh || c.StatusMessage != nil
		r.unsaved = r.unsaved || c.Checkpoint != nil
		return err
	}
	o.advanceTo(t.Position)
	return nil
}

// dueChange returns the change with what is due: the oldest batches, the newest message, and the checkpoint
// behind all pieces so far.
func (o *outbox) dueChange() Change {
	r := o.run
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(o.queue) == 0 && o.nextBatch() == 0 {
		o.closeBatch()
	}
	n := o.nextPortion()
	c := o.portionChange(n)
	if o.fresh && !r.ended && !time.Now().Before(o.next) {
		message := o.message
		c.Op, c.StatusMessage, c.Progress = r.core.newOp(), &message, o.newestProgress()
		o.fresh = false
	}
	if r.unsaved && len(o.open) == 0 && n == len(o.queue) {
		c.Checkpoint, r.unsaved = r.checkpoint, false
	}
	return c
}

// goBack reads how much the store still has of a stream whose end it has lost, and writes the rest
// again as far as it is still here (design.md 0.20).
func (o *outbox) goBack(at Position) {
	r := o.run
	t, err := r.core.readRecord(r.core.life.writes, r.record.id, Summary)
	if err != nil {
		return // the next attempt says the same
	}
	r.mu.Lock()
	whole := o.rewindTo(t.Position)
	r.mu.Unlock()
	if !whole {
		r.observed.logRun(slog.LevelWarn, "the store has lost partial results of a task", "had", at, "has", t.Position)
	}
}

// portionChange returns the change that stores the first n batches, with the checkpoint behind them. run.mu
// is held.
func (o *outbox) portionChange(n int) Change {
	return Change{Tail: batchesOf(o.queue[:n]), At: o.at, Checkpoint: o.lastCheckpoint(n)}
}

// addUnstored adds all pieces so far to a change, with the checkpoint behind them if it has none. run.mu is
// held.
func (o *outbox) addUnstored(c *Change) {
	o.closeBatch()
	all := o.portionChange(len(o.queue))
	c.Tail, c.At = all.Tail, all.At
	if c.Checkpoint == nil {
		c.Checkpoint = all.Checkpoint
	}
}

// noteStored notes that the record has the stream up to p, and goes on from there. run.mu is held.
func (o *outbox) noteStored(p Position) {
	o.advanceTo(p)
	o.scheduleWrite()
}

// haltWriting ends the writing and waits for the current write. Unstored pieces stay in the queue.
func (o *outbox) haltWriting() {
	o.run.mu.Lock()
	o.stopped = true
	close(o.halted)
	o.sayMissed()
	o.closeBatch()
	writing := o.writing
	o.run.mu.Unlock()
	if writing != nil {
		<-writing
	}
}

// addTail adds the unstored pieces to the last change of the run: the tail and the final status are one
// step (design.md 0.19, P3). A cancelled task shows only its earlier pieces (P13). haltWriting has been
// called.
func (o *outbox) addTail(c *Change) {
	if c.To != Cancelled {
		c.Tail, c.At = batchesOf(o.queue), o.at
	}
}

// withRecent returns the last change with the pieces before its tail as far as they are kept, for a store
// that loses them. haltWriting has been called.
func (o *outbox) withRecent(c Change) Change {
	if c.To != Cancelled {
		c.Tail, c.At = slices.Concat(batchesOf(o.kept), c.Tail), c.At-Position(len(o.kept))
	}
	return c
}
