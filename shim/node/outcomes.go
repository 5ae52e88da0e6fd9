package node

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"taskgate/shim"
)

// Defaults of Options.
const (
	DefaultSettle      = 30 * time.Second
	defaultSettleBytes = 64 << 20
)

// Ending is how a task ended here, with the data to write that again. It may also be that a call became a task here, or
// that its questions were answered here: then end has no status, and made is the record after that.
type Ending struct {
	Made shim.Task // as it was created, or adopted
	End  shim.Change
	at   time.Time
	drop *time.Timer
}

func (e Ending) heldBytes() int64 {
	n := int64(len(e.Made.Arguments))
	if o := e.End.Outcome; o != nil {
		n += int64(len(o.Result) + len(o.Error))
	}
	for _, b := range e.End.Tail {
		n += int64(len(b.Content))
	}
	for _, answer := range e.End.Answer {
		n += int64(len(answer))
	}
	return n
}

// joinEarlier adds to an ending without a status what was held of the task before.
func (e *Ending) joinEarlier(was shim.Change) {
	if was.To != "" { // it has ended since
		was.Visible = was.Visible || e.End.Visible
		e.End = was
		return
	}
	e.End.Visible = e.End.Visible || was.Visible
	e.End.TTL, e.End.Retain = max(e.End.TTL, was.TTL), max(e.End.Retain, was.Retain)
}

// untakenAnswers returns the answers that a record has and its runner has not taken.
func untakenAnswers(questions []shim.Question) map[string]json.RawMessage {
	answers := make(map[string]json.RawMessage)
	for _, q := range questions {
		if q.Answer != nil && !q.Taken {
			answers[q.Key] = q.Answer
		}
	}
	return answers
}

// isMissing reports whether a record lacks the ending.
func (e Ending) isMissing(t shim.Task) bool {
	unanswered := func(q shim.Question) bool { return q.Outstanding() && e.End.Answer[q.Key] != nil }
	return !t.Status.Final() && (e.End.To != "" || e.End.Visible && !t.Visible || slices.ContainsFunc(t.Questions, unanswered))
}

// awaitsQuestion reports whether a record lacks a question that was answered here: a record keeps the keys of its
// questions for as long as its call runs, so the store has forgotten this one, and its runner asks it again.
func (e Ending) awaitsQuestion(t shim.Task) bool {
	if t.ID != "" && (t.Status.Final() || t.Lease != e.Made.Lease) {
		return false
	}
	for key := range e.End.Answer {
		if _, ok := shim.FindQuestion(t.Questions, key); !ok {
			return true
		}
	}
	return false
}

// Outcomes keeps the ends of tasks here until they have settled, against a failover of the store, and what else a
// client was told of a task. Redis replicates asynchronously: a Redis replica that takes over may lack the last writes,
// and then a task that has ended runs again, or is gone. So an ending is kept for a while and written again if need be
// (design.md 0.20). The Shim owns it.
type Outcomes struct {
	store    shim.Store
	life     *Life
	observer *Observer
	settle   time.Duration // how long an ending is kept; negative for no time
	most     int64         // bytes of all endings that are kept

	mu    sync.Mutex // guards all below
	held  map[shim.ID]Ending
	bytes int64
}

// HoldEnding keeps an ending until it has settled, and reports whether it does. If there is no room the
// ending is dropped: bounded memory comes before a second chance. The record that is written again lacks the
// call, which its creation may call unsent: if the end then fails to follow, nobody sends the call.
func (o *Outcomes) HoldEnding(e Ending) bool {
	if e.End.To == "" { // an answer that came too late is not among these
		e.End.Answer = untakenAnswers(e.Made.Questions)
	}
	e.Made.Call, e.Made.Checkpoint, e.Made.Questions = nil, nil, nil
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.settle <= 0 || o.bytes+e.heldBytes() > o.most {
		return false
	}
	id := e.Made.ID
	if was, ok := o.held[id]; ok {
		was.drop.Stop()
		o.bytes -= was.heldBytes()
		if e.End.To == "" {
			e.joinEarlier(was.End)
		}
	}
	e.at = time.Now()
	e.drop = o.life.Later(o.settle, func() {
		ctx, stop := context.WithTimeout(o.life.Ctx, o.settle)
		defer stop()
		o.AssureEnding(ctx, id)
		o.releaseEnding(id, e.at)
	})
	o.held[id] = e
	o.bytes += e.heldBytes()
	return true
}

// releaseEnding forgets an ending, if it is still the same one.
func (o *Outcomes) releaseEnding(id shim.ID, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e, ok := o.held[id]; ok && e.at.Equal(at) {
		delete(o.held, id)
		o.bytes -= e.heldBytes()
	}
}

// HeldIDs returns the tasks whose ending is held.
func (o *Outcomes) HeldIDs() []shim.ID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.held))
}

// FindEnding returns the held ending of a task.
func (o *Outcomes) FindEnding(id shim.ID) (Ending, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e, ok := o.held[id]
	return e, ok
}

// AssureEnding reads a task of which an ending is held, and writes that again if the store has forgotten it. An
// answer whose question the store has forgotten as well waits until the runner has asked it again.
func (o *Outcomes) AssureEnding(ctx context.Context, id shim.ID) {
	_, err := Retry(ctx, func(ctx context.Context) (shim.Task, error) {
		e, ok := o.FindEnding(id)
		if !ok {
			return shim.Task{}, nil
		}
		t, err := o.EndAgain(ctx, e)
		if err == nil && e.awaitsQuestion(t) {
			err = shim.ErrUnanswered
		}
		return t, err
	})
	if e, ok := o.FindEnding(id); ok && err != nil && ctx.Err() == nil {
		o.observer.LogTask(e.Made, slog.LevelError, "what a client was told of a task was lost by the store and could not be written again", "err", err)
	}
}

// EndAgain makes one attempt at AssureEnding, and returns the task after it.
func (o *Outcomes) EndAgain(ctx context.Context, e Ending) (shim.Task, error) {
	t, err := o.store.Get(ctx, e.Made.ID, shim.Summary)
	if t.Lease != e.Made.Lease { // another runner may have given the keys to other questions
		e.End.Answer = nil
	}
	switch {
	case err == nil && !e.isMissing(t):
		return t, nil
	case errors.Is(err, shim.ErrNotFound):
		if time.Since(e.at) >= e.Made.Retain || e.End.To == "" {
			return t, nil // its time is over; or its runner writes it again
		}
		if t, err = o.store.Create(ctx, e.Made); err != nil {
			return t, err
		}
	case err != nil:
		return t, err
	}
	o.observer.LogTask(e.Made, slog.LevelWarn, "the store had forgotten the newest of a task; it is written again")
	t, err = o.store.Apply(ctx, e.Made.ID, nil, e.End)
	if errors.Is(err, shim.ErrPosition) { // it has also lost pieces that nobody has any more
		e.End.Tail, e.End.At = nil, 0
		t, err = o.store.Apply(ctx, e.Made.ID, nil, e.End)
	}
	if errors.Is(err, shim.ErrFinal) {
		err = nil
	}
	return t, err
}
