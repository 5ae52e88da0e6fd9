package shim

import (
	"cmp"
	"encoding/json"
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

// outbox has what is new of a run, and writes it to the record: the newest status message and progress, at
// most once per poll interval, as clients read no more often (design.md 0.14); and the pieces that the
// server says while its call runs, in batches. At most one goroutine writes at a time, so that batches
// arrive in order. The run owns it, and run.mu guards it.
type outbox struct {
	run     *run
	message string
	params  json.RawMessage // of the newest progress, where the caller named a token for it
	fresh   bool            // the record lacks the newest of both
	next    time.Time       // the earliest time of the next write of both

	gathers bool // else readers get only the result
	batcher      // the unstored pieces

	due     *time.Timer   // will have what is new written
	writing chan struct{} // closed after the current write; nil between writes
	stopped bool          // the run has ended: writing is over
	halted  chan struct{} // closed by haltWriting
}

func (o *outbox) setMessage(message string) {
	o.run.mu.Lock()
	defer o.run.mu.Unlock()
	o.message = message
	o.refresh()
}

// refresh has the newest message written. run.mu is held.
func (o *outbox) refresh() {
	o.fresh = true
	o.scheduleWrite()
}

// foldProgress takes a progress notification. One that repeats an earlier round only becomes the message. run.mu is held.
func (o *outbox) foldProgress(p Progress, repeats bool) {
	folds, token := o.run.policy.FoldProgress, o.run.call.ProgressToken != nil
	if folds { // the server's message, else its numbers (protocol.md 6.4.2)
		o.message = clipText(cmp.Or(p.Message, content.Numbers(p.Progress, p.Total)))
	}
	if params := RaiseProgress(p.Raw, o.params); token && !repeats && params != nil {
		o.params = params
	}
	if folds || token {
		o.refresh()
	}
}

// newestProgress returns the newest progress. It goes with the end of the task as well: progress
// just before the end, as in "10 of 10", gets no write of its own. run.mu is held.
func (o *outbox) newestProgress() (p TaskProgress) {
	if o.params != nil {
		p = TaskProgress{Token: o.run.call.ProgressToken, Params: o.params}
	}
	return p
}

// interval is the least time between two writes of the message.
func (o *outbox) interval() time.Duration { return cmp.Or(o.run.policy.PollInterval, leastFold) }

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
