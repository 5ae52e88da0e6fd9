package runner

import (
	"encoding/json"
	"log/slog"
	"slices"

	"taskgate/shim"
	"taskgate/shim/content"
)

// gatherProgress takes a piece of content, or a hint (protocol.md 6.4.2). If messages are content,
// progress without one is skipped: its numbers are not part of any result. run.mu is held.
func (o *outbox) gatherProgress(p shim.Progress) {
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
	most := int64(mostWaiting)
	if o.run.keeping.room == nil {
		most = mostEarly
	}
	o.addPiece(piece, most, o.run.keeping.hasRoomFor)
	o.scheduleWrite()
}

// closeBatch makes a batch of the gathered pieces, with the checkpoint that goes with all pieces so
// far, if the store may lack it. run.mu is held.
func (o *outbox) closeBatch() {
	if len(o.open) == 0 {
		return
	}
	var checkpoint json.RawMessage
	if rec := &o.run.record; rec.lacks.checkpoint {
		checkpoint, rec.lacks.checkpoint = rec.Checkpoint, false
	}
	o.closeOpen(checkpoint)
}

// goBack reads how much the store still has of a stream whose end it has lost, and writes the rest
// again as far as it is still here (design.md 0.20).
func (o *outbox) goBack(at shim.Position) {
	r := o.run
	t, err := r.core.ReadRecord(r.core.Life.Writes, r.record.ID, shim.Summary)
	if err != nil {
		return // the next attempt says the same
	}
	r.mu.Lock()
	whole := o.rewindTo(t.Position)
	r.mu.Unlock()
	if !whole {
		r.Observed.logRun(slog.LevelWarn, "the store has lost partial results of a task", "had", at, "has", t.Position)
	}
}

// portionChange returns the change that stores the first n batches, with the checkpoint behind them. run.mu
// is held.
func (o *outbox) portionChange(n int) shim.Change {
	return shim.Change{Tail: batchesOf(o.queue[:n]), At: o.run.record.Position, Checkpoint: o.lastCheckpoint(n)}
}

// addUnstored adds all pieces so far to a change, with the checkpoint behind them if it has none. run.mu is
// held.
func (o *outbox) addUnstored(c *shim.Change) {
	o.closeBatch()
	all := o.portionChange(len(o.queue))
	c.Tail, c.At = all.Tail, all.At
	if c.Checkpoint == nil {
		c.Checkpoint = all.Checkpoint
	}
}

// noteStored notes that the record has the stream up to p, at least, and goes on from there. run.mu is held.
func (o *outbox) noteStored(p shim.Position) {
	at := &o.run.record.Position
	n := min(int(max(p-*at, 0)), len(o.queue))
	o.advanceBy(n)
	*at += shim.Position(n)
	o.scheduleWrite()
}

// rewindTo takes the stream back to the position of a store that has lost its end. It reports whether
// all batches from there on are still here; if not, the rest goes on there, after a loss. run.mu is held.
func (o *outbox) rewindTo(p shim.Position) (whole bool) {
	at := &o.run.record.Position
	lost := int(max(*at-p, 0))
	*at = min(*at, p)
	return o.rewindBy(lost) == lost
}

// addTail adds the unstored pieces to the last change of the run: the tail and the final status are one
// step (design.md 0.19, P3). A cancelled task shows only its earlier pieces (P13). haltWriting has been
// called, and run.mu is held.
func (o *outbox) addTail(c *shim.Change) {
	if c.To != shim.Cancelled {
		c.Tail, c.At = batchesOf(o.queue), o.run.record.Position
	}
}

// withRecent returns the last change with the pieces before its tail as far as they are kept, for a store
// that loses them. haltWriting has been called.
func (o *outbox) withRecent(c shim.Change) shim.Change {
	o.run.mu.Lock()
	defer o.run.mu.Unlock()
	if c.To != shim.Cancelled {
		c.Tail, c.At = slices.Concat(batchesOf(o.kept), c.Tail), c.At-shim.Position(len(o.kept))
	}
	return c
}
