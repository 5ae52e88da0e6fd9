package shim

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// Defaults of Options.
const (
	defaultSettle      = 30 * time.Second
	defaultSettleBytes = 64 << 20
)

// ending is how a task ended here, with the data to write that again. It may also be that a call became a task here, or
// that its questions were answered here: then end has no status, and made is the record after that.
type ending struct {
	made Task // as it was created, or adopted
	end  Change
	at   time.Time
	drop *time.Timer
}

func (e ending) heldBytes() int64 {
	n := int64(0)
	if o := e.end.Outcome; o != nil {
		n += int64(len(o.Result) + len(o.Error))
	}
	for _, b := range e.end.Tail {
		n += int64(len(b.Content))
	}
	for _, answer := range e.end.Answer {
		n += int64(len(answer))
	}
	return n
}

// joinEarlier adds to an ending without a status what was held of the task before.
func (e *ending) joinEarlier(was Change) {
	if was.To != "" { // it has ended since
		was.Visible = was.Visible || e.end.Visible
		e.end = was
		return
	}
	e.end.Visible = e.end.Visible || was.Visible
	e.end.TTL, e.end.Retain = max(e.end.TTL, was.TTL), max(e.end.Retain, was.Retain)
}

// untakenAnswers returns the answers that a record has and its runner has not taken.
func untakenAnswers(questions []Question) map[string]json.RawMessage {
	answers := make(map[string]json.RawMessage)
	for _, q := range questions {
		if q.Answer != nil && !q.Taken {
			answers[q.Key] = q.Answer
		}
	}
	return answers
}

// isMissing reports whether a record lacks the ending.
func (e ending) isMissing(t Task) bool {
	unanswered := func(q Question) bool { return q.Outstanding() && e.end.Answer[q.Key] != nil }
	return !t.Status.Final() && (e.end.To != "" || e.end.Visible && !t.Visible || slices.ContainsFunc(t.Questions, unanswered))
}

// outcomes keeps the ends of tasks here until they have settled, against a failover of the store, and what else a
// client was told of a task. Redis replicates asynchronously: a Redis replica that takes over may lack the last writes,
// and then a task that has ended runs again, or is gone. So an ending is kept for a while and written again if need be
// (design.md 0.20). The Shim owns it.
type outcomes struct {
	store    Store
	life     *life
	observer *observer
	settle   time.Duration // how long an ending is kept; negative for no time
	most     int64         // bytes of all endings that are kept

	mu    sync.Mutex // guards all below
	held  map[ID]ending
	bytes int64
}

// holdEnding keeps an ending until it has settled, and reports whether it does. If there is no room the
// ending is dropped: bounded memory comes before a second chance. The record that is written again lacks the
// call, which its creation may call unsent: if the end then fails to follow, nobody sends the call.
func (o *outcomes) holdEnding(e ending) bool {
	if e.end.To == "" { // an answer that came too late is not among these
		e.end.Answer = untakenAnswers(e.made.Questions)
	}
	e.made.Call, e.made.Checkpoint, e.made.Questions = nil, nil, nil
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.settle <= 0 || o.bytes+e.heldBytes() > o.most {
		return false
	}
	id := e.made.ID
	if was, ok := o.held[id]; ok {
		was.drop.Stop()
		o.bytes -= was.heldBytes()
		if e.end.To == "" {
			e.joinEarlier(was.end)
		}
	}
	e.at = time.Now()
	e.drop = o.life.later(o.settle, func() {
		o.assureEnding(o.life.ctx, id)
		o.releaseEnding(id, e.at)
	})
	o.held[id] = e
	o.bytes += e.heldBytes()
	return true
}

// releaseEnding forgets an ending, if it is still the same one.
func (o *outcomes) releaseEnding(id ID, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e, ok := o.held[id]; ok && e.at.Equal(at) {
		delete(o.held, id)
		o.bytes -= e.heldBytes()
	}
}

func (o *outcomes) heldIDs() []ID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.held))
}

func (o *outcomes) findEnding(id ID) (ending, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e, ok := o.held[id]
	return e, ok
}

// assureEnding reads a task of which an ending is held, and writes that again if the store has forgotten it.
func (o *outcomes) assureEnding(ctx context.Context, id ID) {
	e, ok := o.findEnding(id)
	if !ok {
		return
	}
	_, err := retry(ctx, func(ctx context.Context) (Task, error) { return o.endAgain(ctx, e) })
	if err != nil && ctx.Err() == nil {
		o.observer.logTask(e.made, slog.LevelError, "what a client was told of a task was lost by the store and could not be written again", "err", err)
	}
}

// endAgain makes one attempt at assureEnding, and returns the task after it.
func (o *outcomes) endAgain(ctx context.Context, e ending) (Task, error) {
	t, err := o.store.Get(ctx, e.made.ID, Summary)
	if t.Lease != e.made.Lease { // another runner may have given the keys to other questions
		e.end.Answer = nil
	}
	switch {
	case err == nil && !e.isMissing(t):
		return t, nil
	case errors.Is(err, ErrNotFound):
		if time.Since(e.at) >= e.made.Retain || e.end.To == "" {
			return t, nil // its time is over; or its runner writes it again
		}
		if t, err = o.store.Create(ctx, e.made); err != nil {
			return t, err
		}
	case err != nil:
		return t, err
	}
	o.observer.logTask(e.made, slog.LevelWarn, "the store had forgotten the newest of a task; it is written again")
	t, err = o.store.Apply(ctx, e.made.ID, nil, e.end)
	if errors.Is(err, ErrPosition) { // it has also lost pieces that nobody has any more
		e.end.Tail, e.end.At = nil, 0
		t, err = o.store.Apply(ctx, e.made.ID, nil, e.end)
	}
	if errors.Is(err, ErrFinal) {
		err = nil
	}
	return t, err
}
