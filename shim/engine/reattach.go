package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskgate/shim"
	"taskgate/shim/node"
	"taskgate/shim/runner"
)

// Reattach comes back to a call that Call or Reattach has handed back (Answered.Parked), on any
// replica, with the results that answer its questions, by their keys. It returns the same as Call: the
// reply; the call parked again, with all open questions, if answers are missing or new questions came;
// or, if the caller can take a task or be told of one, a task after another grace or After. Of c it
// takes Upstream, Principal, Request.Method and Name, Handle, After, TTL, Stay and Stream. If ctx ends,
// the call is cancelled; with Stay it goes on.
//
// Answers that were given before are ignored (T36): the caller waits for the outcome of the call, or is
// asked the questions that are open now. Several callers may do so at a time.
//
// ErrNotFound for another owner's call, or one whose time is over; *AnswerError for an answer that is
// invalid or too large, and then all of them may be given again; ErrCancelled if the call was cancelled
// meanwhile. The loss of the replica that ran the call is an error in the reply: the call is never run
// again.
func (s *Shim) Reattach(ctx context.Context, c shim.Call, id shim.ID, answers map[string]json.RawMessage) (shim.Answered, error) {
	if !s.Life.Work.Enter() {
		return shim.Answered{}, shim.ErrRefused
	}
	defer s.Life.Work.Leave()
	srv, err := s.findServer(c.Upstream)
	if err != nil {
		return shim.Answered{}, err
	}
	if c.Principal.NoTasks {
		c.Handle, c.After = false, 0
	}
	read := func() (shim.Task, error) { return s.readOwnCall(ctx, c.Principal, c.Upstream, id, shim.Summary) }
	t, wanted, err := s.readAnswered(ctx, c.Principal, c.Upstream, id, resultsOf(answers), read)
	if err == nil {
		t, err = node.WithPatience(ctx, s.Core, func(ctx context.Context) (shim.Task, error) {
			return node.Retry(ctx, func(ctx context.Context) (shim.Task, error) { return s.storeAnswers(ctx, t, wanted) })
		})
	}
	if err != nil {
		return shim.Answered{}, err
	}
	w := &waiter{s: s, srv: srv, call: c, policy: srv.PolicyFor(c.Request), task: t}
	return w.awaitAnswer(ctx)
}

// readOwnCall reads the record of a call, hidden or not, if it is p's. For a hidden one an anonymous p
// must have the legacy session that made it.
func (s *Shim) readOwnCall(ctx context.Context, p shim.Principal, upstream string, id shim.ID, part shim.Part) (shim.Task, error) {
	t, err := s.ReadRecord(ctx, id, part)
	switch {
	case err != nil:
		return shim.Task{}, err
	case t.Owner != p.Owner(), !s.readsTasksOf(upstream, t.Upstream), !t.Visible && t.ListKey != shim.ListKey(p, upstream):
		return shim.Task{}, shim.ErrNotFound
	}
	s.Marks.NoteRead(t)
	return t, nil
}

// waiter is one Reattach: a caller that waits for a call on any replica.
type waiter struct {
	s      *Shim
	srv    *node.Served
	call   shim.Call
	policy shim.Policy
	task   shim.Task   // by its last read
	run    *runner.Run // to whose stream the caller listens; nil for a call that ran elsewhere

	progress json.RawMessage // the caller's newest progress, if the call runs elsewhere
	asked    []string        // keys of the questions that the caller was asked on its stream
	pickup   *pickup         // nil for a call that was not picked up
}

// errGrace ends the following of a record of which a task is to be made.
var errGrace = errors.New("the grace is over")

// awaitAnswer follows the record until it has an answer for the caller.
func (w *waiter) awaitAnswer(ctx context.Context) (shim.Answered, error) {
	if a, err, done := w.lookAtRecord(); done {
		return a, err
	}
	if w.run = w.s.runs.Get(w.task.ID); w.run != nil {
		stream := w.call.Stream
		if w.call.Asking == shim.AskStream && stream != nil { // askOnStream asks
			stream = heard{stream}
		}
		defer w.run.Caller.AttachStream(stream)()
	}
	w.progress = w.task.Progress.Params // it was told before the questions
	for grace := w.firstGrace(); ; grace = node.RetryCreate {
		a, err := w.followRecord(ctx, grace)
		switch {
		case err != nil && ctx.Err() != nil: // the reason for the failure
			return w.leaveCall(ctx)
		case !errors.Is(err, errGrace):
			return a, err
		}
		if a, err, done := w.becomeTask(ctx); done {
			return a, err
		}
	}
}

// followRecord looks at each state of the record, from the known one on, until one has an answer. It returns
// errGrace after the grace, and ErrDraining once this replica halts.
func (w *waiter) followRecord(ctx context.Context, grace time.Duration) (a shim.Answered, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer w.s.Life.AfterEnd(func() { stop(shim.ErrDraining) })()
	defer time.AfterFunc(grace, func() { stop(errGrace) }).Stop()
	record := shim.Tracked{ID: w.task.ID, Hidden: true, Outcome: true}
	set := w.s.newSet(w.call.Principal, w.call.Upstream)
	if w.task.Status.Final() { // the known state lacks the outcome
		set.Add(record)
	} else {
		set.addKnown(w.task, record)
	}
	err = set.Follow(ctx, func(u shim.Update) (err error) {
		if u.Gone || u.Task.Status.Final() && u.Task.Status != shim.Cancelled && u.Task.Outcome == nil {
			return shim.ErrNotFound
		}
		w.task = *u.Task
		w.tellProgress()
		var done bool
		if a, err, done = w.lookAtRecord(); done && err == nil {
			err = errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return a, err
}

// tellProgress sends the caller the progress in the record, if the call runs on another replica. The
// other replica records the newest progress at each poll interval.
func (w *waiter) tellProgress() {
	p := w.task.Progress.Params
	here := w.run != nil && w.s.runs.Get(w.task.ID) == w.run
	if here || w.call.Stream == nil || p == nil || bytes.Equal(p, w.progress) {
		return
	}
	w.progress = p
	w.call.Stream.Progress(shim.Progress{Raw: p})
}

// firstGrace is how long the caller waits before a task is made of the call: each retry has a grace of its
// own.
func (w *waiter) firstGrace() time.Duration {
	switch mode := w.policy.Tasks; {
	case w.call.Demand:
		return 0
	case !w.takesTask() || mode == shim.Never:
		return node.Never
	case w.call.Handle && mode == shim.Auto:
		return w.srv.GraceFor(w.call.Request, w.policy)
	case w.call.Handle, mode == shim.Required:
		return 0
	}
	return w.call.After
}

// takesTask reports whether the caller can be given a task, or told of one.
func (w *waiter) takesTask() bool { return w.call.Handle || w.call.Demand || w.call.After > 0 }

// lookAtRecord reports whether the record has an answer for the caller.
func (w *waiter) lookAtRecord() (a shim.Answered, err error, done bool) {
	t := w.task
	switch open := shim.OpenQuestions(t.Questions); {
	case t.Status == shim.Cancelled:
		return shim.Answered{}, shim.ErrCancelled, true
	case t.Status.Final() && t.Outcome == nil: // it is read next
		return shim.Answered{}, nil, false
	case t.Status.Final() && t.Outcome.Error != nil:
		return shim.Answered{Reply: shim.Reply{Error: shim.ParseError(t.Outcome.Error)}}, nil, true
	case t.Status.Final():
		return shim.Answered{Reply: shim.Reply{Result: t.Outcome.Result, IsError: t.Outcome.IsError}}, nil, true
	case t.Visible && w.takesTask():
		t = t.ShownAt(time.Now())
		return shim.Answered{Task: &t}, nil, true
	case t.Visible:
		return shim.Answered{}, shim.ErrNotFound, true
	case w.call.Asking == shim.AskStream:
		w.askOnStream(open)
	case len(open) > 0:
		return shim.Answered{Parked: &shim.Parked{ID: t.ID, Questions: open, Until: t.ExpiresAt()}}, nil, true
	}
	return shim.Answered{}, nil, false
}

// leaveCall ends the call when its caller goes away, as Call does.
func (w *waiter) leaveCall(ctx context.Context) (shim.Answered, error) {
	cause := context.Cause(ctx)
	if w.pickup != nil && w.pickup.leaveAgain(cause) {
		return shim.Answered{}, fmt.Errorf("%w: %w", shim.ErrKept, cause)
	}
	if !w.call.Stay || errors.Is(cause, shim.ErrCancelled) {
		token := w.s.bringToken(ctx, w.task)
		if r := w.s.runs.Get(w.task.ID); r != nil {
			r.Cancel(node.ErrTaskCancelled)
		}
		w.s.Life.Work.Go(func() { w.s.CancelUntold(w.task.ID, node.LeftMessage, 0, token) })
	}
	return shim.Answered{}, cause
}

// becomeTask makes a task of the call. While the store is down the caller tries it again.
func (w *waiter) becomeTask(ctx context.Context) (a shim.Answered, err error, done bool) {
	retain := node.RetainFor(w.call, w.policy)
	change := shim.Change{Op: w.s.NewOp(), Visible: true, TTL: w.task.TTL + retain, Retain: retain, Moments: []shim.Moment{{Kind: shim.KindMade}}}
	t, err := w.s.ChangeRecord(ctx, w.task.ID, nil, change)
	switch {
	case err != nil: // the store is away, or the call has ended and followRecord tells so
		return shim.Answered{}, nil, false
	case ctx.Err() != nil:
		a, err = w.leaveCall(ctx)
		return a, err, true
	}
	w.s.Outcomes.HoldEnding(node.Ending{Made: t, End: change})
	t = t.ShownAt(time.Now())
	return shim.Answered{Task: &t}, nil, true
}
