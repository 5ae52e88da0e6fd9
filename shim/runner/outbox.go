package runner

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/content"
	"taskgate/shim/node"
)

const (
	// leastFold bounds how often the status message of a task is written whose policy names no poll
	// interval.
	leastFold = time.Second
	// hiddenFold is the interval of a hidden record: its caller may have come back to another replica, and hears
	// progress from there.
	hiddenFold = 250 * time.Millisecond
	// foldSpread divides the interval into the longest extra pause.
	foldSpread = 4
	// digestBytes bounds what a status message quotes of an error.
	digestBytes = 200
)

// outbox has what is new of a run, and writes it to the record: the newest status message and progress, at
// most once per poll interval, as clients read no more often (design.md 0.14); and the pieces that the
// server says while its call runs, in batches. At most one goroutine writes at a time, so that batches
// arrive in order. The run owns it, and run.mu guards it.
type outbox struct {
	run  *Run
	next time.Time // the earliest time of the next write of the message and the progress

	gathers bool // else readers get only the result
	batcher      // the unstored pieces

	due     *time.Timer   // will have what is new written; nil for none
	dueAt   time.Time     // when it does
	writing bool          // a goroutine writes what is due
	stopped bool          // the run has ended: writing is over
	halted  chan struct{} // closed by haltWriting
}

// scheduleWrite has what is new written when it is due. run.mu is held.
func (o *outbox) scheduleWrite() {
	r := o.run
	d, ok := o.nextDelay()
	if !ok || !r.record.exists() || r.linger.quiet || o.stopped || o.writing {
		return
	}
	if d > 0 {
		at := time.Now().Add(d)
		if o.due != nil && !at.Before(o.dueAt) { // progress may come often
			return
		}
		if o.due != nil {
			o.due.Stop()
		}
		o.dueAt = at
		o.due = r.core.Life.Later(d, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			o.due = nil
			o.scheduleWrite()
		})
		return
	}
	o.writing = r.core.Life.Work.Go(o.writeNews)
}

// nextDelay returns how long the next write still has to wait; ok is false if nothing is new.
func (o *outbox) nextDelay() (d time.Duration, ok bool) {
	if o.run.record.lacks.news && !o.run.ended {
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

// writeNews writes what is due, until nothing is, or the writing is halted. After an error it is written
// again, and new pieces gather. An error that takes the task from this runner also ends the run, which
// halts the writing.
func (o *outbox) writeNews() {
	r := o.run
	for d := node.RetryFirst; ; {
		r.mu.Lock()
		if delay, ok := o.nextDelay(); !ok || delay > 0 || o.stopped {
			o.writing = false
			o.scheduleWrite()
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()

		if o.writeOnce() == nil {
			d = node.RetryFirst
			continue
		}
		work.PauseUntil(o.halted, node.SpreadPause(d))
		d = min(2*d, node.RetryMost)
	}
}

// writeOnce writes what is due, and gives up after opTimeout.
func (o *outbox) writeOnce() error {
	r := o.run
	var c shim.Change
	ctx, stop := context.WithTimeoutCause(r.core.Life.Writes, node.OpTimeout, shim.ErrUnavailable)
	defer stop()
	_, err := r.record.applyChange(ctx, func() shim.Change {
		c = o.dueChange()
		return c
	})
	if errors.Is(err, shim.ErrPosition) {
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
	return err
}

// dueChange returns the change with what is due: the oldest batches, the newest message, and the checkpoint
// behind all pieces so far. run.mu is held.
func (o *outbox) dueChange() shim.Change {
	r := o.run
	if len(o.queue) == 0 && o.nextBatch() == 0 {
		o.closeBatch()
	}
	n := o.nextPortion()
	c := o.portionChange(n)
	rec := &r.record
	if rec.lacks.news && !r.ended && !time.Now().Before(o.next) {
		message := rec.StatusMessage
		c.Op, c.StatusMessage, c.Progress = r.core.NewOp(), &message, rec.newestProgress()
		rec.lacks.news = false
	}
	if rec.lacks.checkpoint && len(o.open) == 0 && n == len(o.queue) {
		c.Checkpoint, rec.lacks.checkpoint = rec.Checkpoint, false
	}
	return c
}

// haltWriting ends the writing and waits for the current write. Unstored pieces stay in the queue.
func (o *outbox) haltWriting() {
	o.run.mu.Lock()
	o.stopped = true
	close(o.halted)
	o.sayMissed()
	o.closeBatch()
	o.run.mu.Unlock()
	o.run.turn.await()
}

func (o *outbox) setMessage(message string) {
	o.run.mu.Lock()
	defer o.run.mu.Unlock()
	o.run.record.StatusMessage = message
	o.refresh()
}

// refresh has the newest message written. run.mu is held.
func (o *outbox) refresh() {
	o.run.record.lacks.news = true
	o.scheduleWrite()
}

// foldProgress takes a progress notification. One that repeats an earlier round only becomes the message. run.mu is held.
func (o *outbox) foldProgress(p shim.Progress, repeats bool) {
	folds, token := o.run.policy.FoldProgress, o.run.Call.ProgressToken != nil
	if folds { // the server's message, else its numbers (protocol.md 6.4.2)
		o.run.record.StatusMessage = clipText(cmp.Or(p.Message, content.Numbers(p.Progress, p.Total)))
	}
	newest := &o.run.record.Progress.Params
	if params := shim.RaiseProgress(p.Raw, *newest); token && !repeats && params != nil {
		*newest = params
	}
	if folds || token {
		o.refresh()
	}
}

// interval is the least time between two writes of the message. run.mu is held.
func (o *outbox) interval() time.Duration {
	every := cmp.Or(o.run.policy.PollInterval, leastFold)
	if o.run.record.isHidden() {
		every = min(every, hiddenFold)
	}
	return every
}

// clipText shortens a text to digestBytes at the end of a character.
func clipText(s string) string {
	if len(s) <= digestBytes {
		return s
	}
	n := digestBytes
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
