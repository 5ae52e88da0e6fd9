package shim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"taskgate/shim/content"
)

const (
	// leastFold bounds how often the status message of a task is written whose policy names no poll
	// interval.
	leastFold = time.Second
	// foldSpread divides the interval into the longest extra pause.
	foldSpread = 4
	// digestBytes bounds what a status message quotes of an error.
	digestBytes = 200
)

// statusWriter has the newest status message and progress of a run, and writes them to its record
// at most once per poll interval, as clients read it no more often (design.md 0.14). The run owns
// it, and run.mu guards it.
type statusWriter struct {
	run     *run
	message string
	params  json.RawMessage // of the newest progress, where the caller named a token for it
	pending bool            // a write is due, or under way
	next    time.Time       // the earliest time of the next write
}

func (w *statusWriter) setMessage(message string) {
	w.run.mu.Lock()
	defer w.run.mu.Unlock()
	w.message = message
	w.scheduleMessage()
}

// foldProgress takes a progress notification. One that repeats an earlier round only becomes the message. run.mu is held.
func (w *statusWriter) foldProgress(p Progress, repeats bool) {
	folds, token := w.run.policy.FoldProgress, w.run.call.ProgressToken != nil
	if folds { // the server's message, else its numbers (protocol.md 6.4.2)
		w.message = clipText(cmp.Or(p.Message, content.Numbers(p.Progress, p.Total)))
	}
	if params := RaiseProgress(p.Raw, w.params); token && !repeats && params != nil {
		w.params = params
	}
	if folds || token {
		w.scheduleMessage()
	}
}

// newestProgress returns the newest progress. It goes with the end of the task as well: progress
// just before the end, as in "10 of 10", gets no write of its own. run.mu is held.
func (w *statusWriter) newestProgress() (p TaskProgress) {
	if w.params != nil {
		p = TaskProgress{Token: w.run.call.ProgressToken, Params: w.params}
	}
	return p
}

// scheduleMessage has the newest message written. A change during a write, or a failed write, goes
// out with the next one. run.mu is held.
func (w *statusWriter) scheduleMessage() {
	if w.run.record == nil || w.pending || w.run.ended {
		return
	}
	w.pending = true
	w.run.core.life.later(time.Until(w.next), w.writeMessage)
}

// interval is the least time between two writes of this run.
func (w *statusWriter) interval() time.Duration { return cmp.Or(w.run.policy.PollInterval, leastFold) }

// writeMessage writes the newest message. It makes one attempt only: there may be more to say by
// the next one.
func (w *statusWriter) writeMessage() {
	r := w.run
	r.mu.Lock()
	ended := r.ended
	w.pending = !ended
	r.mu.Unlock()
	if ended {
		return
	}
	var wrote Change
	ctx, stop := context.WithTimeoutCause(r.core.life.ctx, opTimeout, ErrUnavailable)
	defer stop()
	_, err := r.record.applyChange(ctx, func() Change {
		r.mu.Lock()
		defer r.mu.Unlock()
		message := w.message
		wrote = Change{Op: r.core.newOp(), StatusMessage: &message, Progress: w.newestProgress()}
		if r.unsaved && r.pieces == nil { // else it goes with the pieces before it
			wrote.Checkpoint, r.unsaved = r.checkpoint, false
		}
		return wrote
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	w.pending = false
	// The pause varies a little: many tasks that begin together would otherwise go on to be written
	// together, once per interval.
	every := w.interval()
	w.next = time.Now().Add(every + rand.N(every/foldSpread))
	switch {
	case r.ended, errors.Is(err, ErrFinal), errors.Is(err, ErrLeaseLost), errors.Is(err, ErrNotFound):
		return
	case err != nil:
		r.unsaved = r.unsaved || wrote.Checkpoint != nil
		w.scheduleMessage()
	case wrote.StatusMessage == nil, w.message != *wrote.StatusMessage, !bytes.Equal(w.params, wrote.Progress.Params), r.unsaved && r.pieces == nil:
		w.scheduleMessage()
	}
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
