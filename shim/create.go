package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/codes"

	"taskgate/internal/semconv"
)

// callRecord is the content of Task.Call: the data that a runner on another replica needs to go on.
type callRecord struct {
	Request Request `json:"request"`
	// Runs counts how often the call was begun, for recover: retry.
	Runs int `json:"runs"`
	// Retry says that the call may be run again, by the policy under which its task was made.
	Retry bool `json:"retry,omitempty"`
	// Timeout is that policy's; 0 in a record of an older version, or for none.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Firm says that a record that lacks a checkpoint is of an unsent call. It is false if the call
	// goes on blocking when creating seems to fail: a creation whose reply was lost leaves such a
	// record behind, and the call goes out all the same.
	Firm bool `json:"firm,omitempty"`
	// Handle and Partials are those of the Call. A hidden record may become a task of a caller that
	// takes one.
	Handle   bool `json:"handle,omitempty"`
	Partials bool `json:"partials,omitempty"`
	// Asking is how the caller can be asked; Until is the deadline to answer the open questions,
	// counted from the record's creation; Keys is the number of question keys that were made.
	Asking Asking        `json:"asking,omitempty"`
	Until  time.Duration `json:"until,omitempty"`
	Keys   int           `json:"keys,omitempty"`
	// Round is set while the server only waits for a retry with answers.
	Round *round `json:"round,omitempty"`
}

// callRecord keeps the params only while a later run may need them: until the call is sent, and longer
// if its owner allows a second run (design.md 0.13). A call is sent again only with them.
func (r *run) callRecord(sent bool) json.RawMessage {
	rec := callRecord{
		Request: r.call.Request, Runs: r.begun, Retry: r.policy.Retry, Timeout: r.policy.Timeout, Firm: r.firm,
		Handle: r.call.Handle, Partials: r.call.Partials,
		Asking: r.call.Asking, Until: r.box.until, Keys: r.box.made, Round: r.rounds.recordedRound(),
	}
	if sent && !r.policy.Retry && r.rounds.open == nil {
		rec.Request.Params = nil
	}
	b, _ := json.Marshal(rec) // Params are parsed JSON, so this succeeds
	return b
}

// creation gives a run its record, or makes a task of that. The run owns it, and run.turn guards it.
type creation struct {
	run   *run
	maybe *Task // an attempt whose reply was lost: it may be stored
}

// ensureRecord gives the call a record, if it lacks one: a visible one is a durable task (design.md
// 0.13). After that success the call is independent of the caller's context, and the handle is its
// answer. errEnded says that the reply was there first.
func (c *creation) ensureRecord(visible bool) (Task, error) {
	r := c.run
	t, err := c.attempt(visible)
	if err == nil && visible && !t.Visible { // an attempt to store it hidden got through
		t, err = c.attempt(true)
	}
	if err == nil {
		r.confirmUnsent()
	}
	return t, err
}

// attempt is one attempt at ensureRecord.
func (c *creation) attempt(visible bool) (Task, error) {
	r := c.run
	if err := r.turn.takeInTime(); err != nil {
		return Task{}, err
	}
	defer r.turn.give()
	r.mu.Lock()
	rec, ended := r.record, r.ended
	made := rec != nil && (!visible || !rec.hidden)
	r.mu.Unlock()
	switch {
	case made:
		return rec.made, nil
	case ended:
		return Task{}, errEnded
	case rec != nil:
		return c.showTask()
	}
	return c.createRecord(visible)
}

// createRecord makes the record. run.turn is held.
func (c *creation) createRecord(visible bool) (Task, error) {
	r := c.run
	r.mu.Lock()
	draft, begin := c.draftTask()
	if !visible {
		draft.Visible, draft.TTL, draft.Retain = false, r.box.answerTimeout()+comeBack, hiddenRetain
	}
	r.mu.Unlock()
	again := c.maybe != nil
	t, err := c.storeTask(draft, begin)
	if err != nil {
		return t, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Visible {
		r.caller.releaseClient()
	}
	if again && r.checkpoint != nil {
		r.unsaved = true // what is stored may be from an attempt before the call was sent
	}
	if r.unsaved || r.outbox.message != draft.StatusMessage {
		r.outbox.fresh = true
	}
	r.outbox.noteStored(t.Position)
	return t, nil
}

// draftTask returns the task as it is known now, before storeTask completes it, and its first batches:
// the pieces from before the handle. run.mu is held.
func (c *creation) draftTask() (Task, []Batch) {
	r := c.run
	var begin Change
	r.outbox.addUnstored(&begin)
	retain := retainFor(r.call, r.policy)
	r.unsaved = false
	t := Task{
		Owner:         r.call.Principal.Owner(),
		ListKey:       listKey(r.call.Principal, r.srv.name),
		Upstream:      r.srv.name,
		Origin:        r.call.Origin,
		Visible:       true,
		Status:        Working,
		StatusMessage: r.outbox.message,
		TTL:           retain,
		Retain:        retain,
		PollInterval:  r.policy.PollInterval,
		Lease:         Lease{Replica: r.core.replica},
		Method:        r.call.Request.Method,
		Tool:          r.call.Request.Name,
		Checkpoint:    r.checkpoint,
		Progress:      TaskProgress{Token: r.call.ProgressToken, Params: r.outbox.params},
		Call:          r.callRecord(r.checkpoint != nil),
	}
	return t, begin.Tail
}

// leastTTL is the shortest retention of a task that a caller can ask for.
const leastTTL = 2 * time.Second

// retainFor returns how long a task is kept after its end: as the caller wishes, within bounds (L10).
// With a shorter time, clients that poll would miss the end.
func retainFor(c Call, p Policy) time.Duration {
	d := p.TTL
	if c.TTL > 0 {
		d = max(c.TTL, leastTTL, 2*cmp.Or(p.PollInterval, longestPoll))
	}
	return min(d, p.TTL)
}

// storeTask admits the task, writes it and makes it the run's.
func (c *creation) storeTask(t Task, begin []Batch) (Task, error) {
	r := c.run
	err := r.srv.tasks.Enter(r.call.Principal.Share())
	if err != nil {
		return Task{}, err
	}
	if c.maybe != nil { // under the same id, so that there is only one record
		t.ID, t.Op = c.maybe.ID, c.maybe.Op
	} else {
		t.ID, t.Op = r.core.newTaskID(r.base, t), r.core.newOp()
	}
	root := r.observed.startTrace(&t, c.maybe)
	defer root.End()
	timeline := r.observed.takeMoments()
	if t.Visible {
		timeline = append(timeline, Moment{Kind: KindMade, Detail: string(r.core.replica)})
	}
	r.runs.expectTask(t.ID)
	r.inbox.noteRead(0, r.core.epoch.Load())
	r.mu.Lock()
	firm := r.firm
	r.mu.Unlock()
	stored, err := withPatience(r.base, r.core, func(ctx context.Context) (Task, error) {
		if err := r.core.heart.Alive(ctx); err != nil {
			return Task{}, err
		}
		draft := t
		draft.Timeline = timeline
		earlier := c.maybe
		c.maybe = &t
		stored, err := r.core.store.Create(ctx, draft, begin...)
		if errors.Is(err, ErrRefusedWrite) {
			c.maybe = earlier
		}
		return stored, err
	})
	if c.maybe == nil {
		r.runs.unexpectTask(t.ID)
	} else if err != nil && !isAnswer(err) && firm {
		err = fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	}
	if err != nil {
		root.SetAttributes(semconv.ErrorType.String(labelOf(err)))
		root.SetStatus(codes.Error, "")
		r.srv.tasks.Leave(r.call.Principal.Share())
		return Task{}, fmt.Errorf("create a task: %w", err)
	}
	t.CreatedAt, t.UpdatedAt = stored.CreatedAt, stored.UpdatedAt // by the store's clock
	r.observed.beginSpan(t)
	r.setRecord(stored, &record{id: t.ID, made: t, hidden: !stored.Visible, lease: t.Lease})
	if stored.Visible {
		r.observed.noteMade()
	}
	r.observed.logSent()
	return stored, nil
}

// buryFor is how long burying a record is tried, and how long the store keeps it then: a lost creation
// arrives within that time, or never.
const buryFor = time.Minute

// messageBuried is the status message of such a record.
const messageBuried = "the call has ended without a task"

// buryRecord ends a record that may have been created for a call that has none here. If the creation is
// still on its way, it finds its id and op in use and only reads the record.
func (c *creation) buryRecord(lost Task) {
	r := c.run
	defer r.runs.unexpectTask(lost.ID)
	ended := Task{
		ID: lost.ID, Op: lost.Op, Owner: lost.Owner, Upstream: lost.Upstream, Method: lost.Method, Tool: lost.Tool, Lease: lost.Lease,
		Status: Cancelled, StatusMessage: messageBuried, TTL: buryFor, Retain: buryFor,
	}
	ctx, stop := context.WithTimeout(r.core.life.writes, buryFor)
	defer stop()
	t, err := retry(ctx, func(ctx context.Context) (Task, error) { return r.core.store.Create(ctx, ended) })
	if err != nil || !t.Status.Final() {
		r.core.cancelUntold(lost.ID, messageBuried, time.Second, "")
	}
}

// showTask makes a task of a hidden record. run.turn is held.
func (c *creation) showTask() (Task, error) {
	r := c.run
	lease := r.record.currentLease()
	retain := retainFor(r.call, r.policy)
	change := Change{Op: r.core.newOp(), Visible: true, TTL: time.Since(r.record.born) + retain, Retain: retain, Moments: []Moment{{Kind: KindMade}}}
	t, err := r.core.changeRecord(r.base, r.record.id, &lease, change)
	if err != nil {
		r.record.obeyRefusal(err, lease, t)
		return t, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteShown(t)
	return t, nil
}
