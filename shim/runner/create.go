package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskgate/internal/semconv"
	"taskgate/shim"
	"taskgate/shim/node"

	"go.opentelemetry.io/otel/codes"
)

// CallRecord is the content of Task.Call: the data that a runner on another replica needs to go on.
type CallRecord struct {
	Request shim.Request `json:"request"`
	// Runs counts how often the call was begun, for recover: retry.
	Runs int `json:"runs"`
	// Retry says that the call may be run again, by the policy under which its task was made.
	Retry bool `json:"retry,omitempty"`
	// IfRepeatable says that Retry holds only while the server says that a second call does no harm.
	IfRepeatable bool `json:"ifRepeatable,omitempty"`
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
	Asking shim.Asking   `json:"asking,omitempty"`
	Until  time.Duration `json:"until,omitempty"`
	Keys   int           `json:"keys,omitempty"`
	// Linger says how a repeat finds the call, if its client may give up or has.
	Linger *shim.Lingering `json:"linger,omitempty"`
	// Round is set while the server only waits for a retry with answers.
	Round *round `json:"round,omitempty"`
}

// callRecord keeps the params only while a later run may need them: until the call is sent, and longer
// if its owner allows a second run (design.md 0.13). A call is sent again only with them.
func (r *Run) callRecord(sent bool) json.RawMessage {
	rec := CallRecord{
		Request: r.Call.Request, Runs: r.begun, Retry: r.policy.Retry, IfRepeatable: r.policy.IfRepeatable, Timeout: r.policy.Timeout, Firm: r.record.says == unsent,
		Handle: r.Call.Handle, Partials: r.Call.Partials,
		Asking: r.Call.Asking, Until: r.box.until, Keys: r.box.made, Round: r.rounds.recordedRound(),
	}
	if sent && !r.policy.Retry && r.rounds.open == nil {
		rec.Request.Params = nil
	}
	if e := r.linger.entry; e.Client != "" {
		rec.Linger = &e
	}
	b, _ := json.Marshal(rec) // Params are parsed JSON, so this succeeds
	return b
}

// creation gives a run its record, or makes a task of that. The run owns it, and run.turn guards it.
type creation struct {
	run   *Run
	maybe *shim.Task // an attempt whose reply was lost: it may be stored
}

// EnsureRecord gives the call a record, if it lacks one: a visible one is a durable task (design.md
// 0.13). After that success the call is independent of the caller's context, and the handle is its
// answer. errEnded says that the reply was there first.
func (c *creation) EnsureRecord(visible bool) (shim.Task, error) {
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

// attempt is one attempt at EnsureRecord.
func (c *creation) attempt(visible bool) (shim.Task, error) {
	r := c.run
	if err := r.turn.takeInTime(); err != nil {
		return shim.Task{}, err
	}
	defer r.turn.give()
	r.mu.Lock()
	t, ended := r.record.Task, r.ended
	r.mu.Unlock()
	if t.ID != "" {
		if err := r.linger.unquiet(); err != nil {
			return shim.Task{}, err
		}
	}
	switch {
	case t.ID != "" && (t.Visible || !visible):
		return t, nil
	case ended:
		return shim.Task{}, errEnded
	case t.ID != "":
		return c.showTask()
	}
	return c.createRecord(visible)
}

// ensureQuiet gives the call a hidden record that only a repeat needs, if it lacks a record (lingering.quiet).
func (c *creation) ensureQuiet() (shim.Task, error) {
	r := c.run
	if err := r.turn.takeInTime(); err != nil {
		return shim.Task{}, err
	}
	defer r.turn.give()
	r.mu.Lock()
	t, ended := r.record.Task, r.ended
	r.linger.quiet = t.ID == "" && !ended
	r.mu.Unlock()
	switch {
	case t.ID != "":
		return t, nil
	case ended:
		return shim.Task{}, errEnded
	}
	t, err := c.createRecord(false)
	if err != nil {
		r.mu.Lock()
		r.linger.quiet = false
		r.mu.Unlock()
	}
	return t, err
}

// createRecord makes the record. run.turn is held.
func (c *creation) createRecord(visible bool) (shim.Task, error) {
	r := c.run
	r.hold.Keep() // others may read the answer
	r.mu.Lock()
	draft, begin := c.draftTask()
	if !visible {
		draft.Visible, draft.TTL, draft.Retain = false, r.box.answerTimeout()+shim.ComeBack, max(shim.HiddenRetain, r.linger.entry.Linger)
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
		r.Caller.releaseClient()
	}
	lacks := &r.record.lacks
	if again && r.record.Checkpoint != nil {
		lacks.checkpoint = true // what is stored may be from an attempt before the call was sent
	}
	lacks.news = lacks.news || lacks.checkpoint || r.record.StatusMessage != draft.StatusMessage
	r.outbox.noteStored(t.Position)
	return t, nil
}

// draftTask returns the task as it is known now, before storeTask completes it, and its first batches:
// the pieces from before the handle. run.mu is held.
func (c *creation) draftTask() (shim.Task, []shim.Batch) {
	r := c.run
	var begin shim.Change
	r.outbox.addUnstored(&begin)
	retain := node.RetainFor(r.Call, r.policy)
	r.record.lacks.checkpoint = false
	t := shim.Task{
		Owner:         r.Call.Principal.Owner(),
		ListKey:       shim.ListKey(r.Call.Principal, r.Srv.Name),
		Upstream:      r.Srv.Name,
		Origin:        r.Call.Origin,
		Visible:       true,
		Status:        shim.Working,
		StatusMessage: r.record.StatusMessage,
		Lead:          r.Observed.sentAgo(),
		TTL:           retain,
		Retain:        retain,
		PollInterval:  r.policy.PollInterval,
		Lease:         shim.Lease{Replica: r.core.Replica},
		Method:        r.Call.Request.Method,
		Tool:          r.Call.Request.Name,
		Checkpoint:    r.record.Checkpoint,
		Progress:      r.record.Progress,
		Call:          r.callRecord(r.record.Checkpoint != nil),
		RerunOf:       r.Call.RerunOf,
	}
	return t, begin.Tail
}

// storeTask admits the task, writes it and makes it the run's.
func (c *creation) storeTask(t shim.Task, begin []shim.Batch) (shim.Task, error) {
	r := c.run
	leave, err := c.admitTask(t)
	if err != nil {
		return shim.Task{}, err
	}
	if c.maybe != nil { // under the same id, so that there is only one record
		t.ID, t.Op = c.maybe.ID, c.maybe.Op
	} else {
		t.ID, t.Op = r.core.NewTaskID(r.base, t), r.core.NewOp()
	}
	arguments := r.keeping.encodeArguments()
	if !r.keeping.makeRoomFor(len(arguments)) {
		arguments = nil
	}
	root := r.Observed.startTrace(&t, c.maybe)
	defer root.End()
	timeline := r.Observed.takeMoments()
	if t.Visible {
		timeline = append(timeline, shim.Moment{Kind: shim.KindMade, Detail: string(r.core.Replica)})
	}
	r.runs.ExpectTask(t.ID)
	r.Inbox.noteRead(0, r.core.Epoch.Load())
	r.mu.Lock()
	mustMake := r.record.says == unsent
	r.mu.Unlock()
	stored, err := node.WithPatience(r.base, r.core, func(ctx context.Context) (shim.Task, error) {
		if err := r.core.Heart.Alive(ctx); err != nil {
			return shim.Task{}, err
		}
		draft := t
		draft.Timeline, draft.Arguments = timeline, arguments
		earlier := c.maybe
		c.maybe = &t
		stored, err := r.core.Store.Create(ctx, draft, begin...)
		if errors.Is(err, shim.ErrRefusedWrite) {
			c.maybe = earlier
		}
		return stored, err
	})
	if c.maybe == nil {
		r.runs.UnexpectTask(t.ID)
	} else if err != nil && !node.IsAnswer(err) && mustMake {
		err = fmt.Errorf("%w: %w", shim.ErrUnconfirmed, err)
	}
	if err != nil {
		root.SetAttributes(semconv.ErrorType.String(labelOf(err)))
		root.SetStatus(codes.Error, "")
		leave()
		return shim.Task{}, fmt.Errorf("create a task: %w", err)
	}
	t.CreatedAt, t.UpdatedAt = stored.CreatedAt, stored.UpdatedAt          // by the store's clock
	t.Visible, t.TTL, t.Retain = stored.Visible, stored.TTL, stored.Retain // an attempt to store it otherwise may have got through
	r.Observed.beginSpan(t)
	r.keeping.setArguments(len(arguments))
	r.record.beginRecord(t)
	if stored.Visible {
		r.Observed.noteMade()
	}
	r.Observed.logSent()
	return stored, nil
}

// admitTask counts a task that is about to be made, and sets room aside for it, until leave is called. A quiet record
// counts once its client has given up.
func (c *creation) admitTask(t shim.Task) (leave func(), err error) {
	r := c.run
	r.mu.Lock()
	quiet := r.linger.quiet
	r.mu.Unlock()
	if quiet {
		return func() {}, nil
	}
	if err := c.enterTasks(); err != nil {
		return nil, err
	}
	leave = func() {
		r.Srv.Tasks.Leave(r.Call.Principal.Share())
		r.keeping.dropRoom()
	}
	if t.Visible {
		if err := r.keeping.reserveRoom(); err != nil {
			leave()
			return nil, err
		}
	}
	return leave, nil
}

// enterTasks counts the call as a task. *shim.BusyError. Where others' tasks leave no room, a call that is kept for a repeat
// gives way.
func (c *creation) enterTasks() error {
	r := c.run
	tasks, share := &r.Srv.Tasks, r.Call.Principal.Share()
	err := tasks.Enter(share)
	if busy, ok := errors.AsType[*shim.BusyError](err); ok && busy.Key == tasks.Key &&
		r.Srv.Slots.AskOffered(func(leaving shim.Share) bool { return tasks.EnterFor(share, leaving) == nil }) {
		return nil
	}
	return err
}

// buryFor is how long burying a record is tried, and how long the store keeps it then: a lost creation
// arrives within that time, or never.
const buryFor = time.Minute

// messageBuried is the status message of such a record.
const messageBuried = "the call has ended without a task"

// buryRecord ends a record that may have been created for a call that has none here. If the creation is
// still on its way, it finds its id and op in use and only reads the record.
func (c *creation) buryRecord(lost shim.Task) {
	r := c.run
	defer r.runs.UnexpectTask(lost.ID)
	ended := shim.Task{
		ID: lost.ID, Op: lost.Op, Owner: lost.Owner, Upstream: lost.Upstream, Method: lost.Method, Tool: lost.Tool, Lease: lost.Lease,
		Status: shim.Cancelled, StatusMessage: messageBuried, TTL: buryFor, Retain: buryFor,
	}
	ctx, stop := context.WithTimeout(r.core.Life.Writes, buryFor)
	defer stop()
	t, err := node.Retry(ctx, func(ctx context.Context) (shim.Task, error) { return r.core.Store.Create(ctx, ended) })
	if err != nil || !t.Status.Final() {
		r.core.CancelUntold(lost.ID, messageBuried, time.Second, "")
	}
}

// showTask makes a task of a hidden record. run.turn is held.
func (c *creation) showTask() (shim.Task, error) {
	r := c.run
	if err := r.keeping.reserveRoom(); err != nil {
		return shim.Task{}, err
	}
	r.keeping.takeRoom()
	lease := r.record.currentLease()
	retain := node.RetainFor(r.Call, r.policy)
	change := shim.Change{Op: r.core.NewOp(), Visible: true, TTL: time.Since(r.record.born) + retain, Retain: retain, Moments: []shim.Moment{{Kind: shim.KindMade}}}
	t, err := r.core.ChangeRecord(r.base, r.record.ID, &lease, change)
	if err != nil {
		r.record.obeyRefusal(err, lease, t)
		return t, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.record.takeState(t)
	return t, nil
}
