package shim

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// Reattach goes on with a call that was handed back (Answered.Parked): it stores the
// answers and waits for what comes next, on whichever replica the call runs. See API.
func (s *Shim) Reattach(ctx context.Context, c Call, id ID, answers map[string]json.RawMessage) (Answered, error) {
	if !s.work.admit() {
		return Answered{}, ErrDraining
	}
	defer s.work.end()
	srv, err := s.server(c.Upstream)
	if err != nil {
		return Answered{}, err
	}
	asked := c.Asked
	if len(asked) == 0 {
		asked = slices.Collect(maps.Keys(answers))
	}
	t, err := s.reach(ctx, c.Principal, c.Upstream, id)
	if err == nil && answered(t.Questions, asked) {
		err = ErrAnswered
	}
	if err == nil {
		t, err = s.handIn(ctx, t, answers)
	}
	if err != nil {
		return Answered{}, err
	}
	v := &visit{s: s, call: c, policy: srv.policyFor(c.Request), task: t}
	return v.wait(ctx)
}

// answered reports whether one of the questions of these keys has its answer.
func answered(questions []Question, keys []string) bool {
	for _, key := range keys {
		if q, ok := find(questions, key); ok && q.Answer != nil {
			return true
		}
	}
	return false
}

// reach reads the record of a call, hidden or not, if it is p's. One that is hidden
// belongs to a legacy session as well, where p has no name.
func (s *Shim) reach(ctx context.Context, p Principal, upstream string, id ID) (Task, error) {
	var t Task
	err := s.within(ctx, func(ctx context.Context) (err error) {
		t, err = s.store.Get(ctx, id, Summary)
		return err
	})
	switch {
	case err != nil:
		return Task{}, err
	case t.Owner != p.Owner(), t.Upstream != upstream, !t.Visible && t.ListKey != listKey(p, upstream):
		return Task{}, ErrNotFound
	}
	return t, nil
}

// handIn stores answers of a caller that comes back. Each is claimed in the same step,
// so that of two who bring the same one the second learns that it was (ErrAnswered).
// Answers to what is no longer open come along from rounds before and are ignored: the
// open questions are what the caller was given.
func (s *Shim) handIn(ctx context.Context, t Task, answers map[string]json.RawMessage) (Task, error) {
	wanted, err := s.wanted(t, resultsOf(answers))
	if err != nil || len(wanted) == 0 {
		return t, err
	}
	change := Change{Claim: slices.Sorted(maps.Keys(wanted)), ClaimBy: s.op(), Answer: wanted}
	var after Task
	err = s.within(ctx, func(ctx context.Context) error {
		return s.retry(ctx, func(ctx context.Context) (err error) {
			after, err = s.store.Apply(ctx, t.ID, nil, change)
			return err
		})
	})
	if err != nil && !errors.Is(err, ErrFinal) {
		return Task{}, err
	}
	for _, key := range change.Claim {
		if q, ok := find(after.Questions, key); ok && q.Answer != nil && q.Claim != change.ClaimBy {
			return Task{}, ErrAnswered
		}
	}
	return after, nil
}

// visit is one Reattach: a caller who waits for a call that may run anywhere.
type visit struct {
	s      *Shim
	call   Call
	policy Policy
	task   Task // as it was last read
	run    *run // nil where another replica runs it

	began time.Time     // when the caller was first said to be here; zero before
	kept  time.Duration // the record's TTL then

	unread bool // the record, or its outcome, could not be read when it was due
}

// wait looks at the record after each event until there is something to answer.
func (v *visit) wait(ctx context.Context) (Answered, error) {
	if a, err, done := v.look(ctx); done {
		return a, err
	}
	watched, stop := context.WithCancel(ctx)
	wake := make(chan struct{}, 1)
	var watching sync.WaitGroup
	watching.Go(func() { v.s.wakeOn(watched, v.task.ID, wake) })
	defer watching.Wait()
	defer stop()
	distrust := time.NewTicker(reread)
	defer distrust.Stop()
	var replied chan struct{} // never, where the call runs elsewhere
	if v.run = v.s.attach(v.task.ID, v.call.Stream); v.run != nil {
		defer v.run.detach()
		replied = v.run.done
	}
	grace := v.grace()
	v.attend(ctx)
	for {
		var retry <-chan time.Time
		if v.unread {
			retry = time.After(rereadFailed)
		}
		select {
		case <-ctx.Done():
			return v.leave(ctx)
		case <-v.s.ctx.Done():
			return Answered{}, ErrDraining
		case <-replied:
			return v.reply()
		case <-grace:
			if a, err, done := v.becomeTask(ctx); done {
				return a, err
			}
			grace = time.After(retryCreate)
			continue
		case <-wake:
		case <-retry:
		case <-distrust.C:
			v.attend(ctx)
		}
		t, err := v.s.reach(ctx, v.call.Principal, v.call.Upstream, v.task.ID)
		if errors.Is(err, ErrNotFound) {
			return Answered{}, err
		}
		if v.unread = err != nil; !v.unread {
			v.task = t
		}
		if a, err, done := v.look(ctx); done {
			return a, err
		}
	}
}

// attend tells the replica that runs the call that its caller is here, if that may be
// about to give the call up: its questions have run out. It has the record kept for
// longer, and again from time to time. If this replica dies the call is given up after
// all.
func (v *visit) attend(ctx context.Context) {
	expired := func(q Question) bool { return q.Withdraw && q.Answer == nil }
	if v.run != nil || v.task.Visible || !slices.ContainsFunc(v.task.Questions, expired) {
		return
	}
	if v.began.IsZero() {
		v.began, v.kept = time.Now(), v.task.TTL
	}
	change := Change{Op: v.s.op(), TTL: v.kept + time.Since(v.began) + 2*abandonAfter}
	// Where it fails there is time to say so again.
	_ = v.s.within(ctx, func(ctx context.Context) error {
		_, err := v.s.store.Apply(ctx, v.task.ID, nil, change)
		return err
	})
}

// grace is when a task is made of the call: each retry has a grace of its own.
func (v *visit) grace() <-chan time.Time {
	switch mode := v.policy.Tasks; {
	case !v.takesTask() || mode == Never:
		return nil
	case v.call.Handle && mode == Auto:
		return time.After(v.policy.Grace)
	case v.call.Handle, mode == Required:
		return time.After(0)
	}
	return time.After(v.call.After)
}

// takesTask reports whether the caller can be given a task, or told of one.
func (v *visit) takesTask() bool { return v.call.Handle || v.call.After > 0 }

// look tells whether the record has something for the caller.
func (v *visit) look(ctx context.Context) (a Answered, err error, done bool) {
	t := v.task
	switch open := outstanding(t.Questions); {
	case t.Status == Cancelled:
		return Answered{}, ErrCancelled, true
	case t.Status.Final():
		return v.outcome(ctx)
	case t.Visible && v.takesTask():
		return Answered{Task: &t}, nil, true
	case t.Visible:
		return Answered{}, ErrNotFound, true
	case len(open) > 0:
		return Answered{Parked: &Parked{ID: t.ID, Questions: open, Until: t.ExpiresAt()}}, nil, true
	}
	return Answered{}, nil, false
}

// outcome is the stored end of the call as its reply. It is not done where that cannot be
// read now, or a failover has undone the end.
func (v *visit) outcome(ctx context.Context) (a Answered, err error, done bool) {
	var t Task
	err = v.s.within(ctx, func(ctx context.Context) (err error) {
		t, err = v.s.store.Get(ctx, v.task.ID, WithOutcome)
		return err
	})
	switch v.unread = errors.Is(err, ErrUnavailable) || err == nil && !t.Status.Final(); {
	case v.unread:
		return Answered{}, nil, false
	case err != nil:
		return Answered{}, err, true
	case t.Outcome == nil:
		return Answered{}, ErrNotFound, true
	case t.Outcome.Error != nil:
		return Answered{Reply: Reply{Error: parseError(t.Outcome.Error)}}, nil, true
	}
	return Answered{Reply: Reply{Result: t.Outcome.Result, IsError: t.Outcome.IsError}}, nil, true
}

// reply is what the run on this replica has got.
func (v *visit) reply() (Answered, error) {
	if errors.Is(v.run.err, errTaskCancelled) {
		return Answered{}, ErrCancelled
	}
	return Answered{Reply: v.run.reply}, v.run.err
}

// leave ends the call of a caller who goes away, as it would end Call.
func (v *visit) leave(ctx context.Context) (Answered, error) {
	cause := context.Cause(ctx)
	if !v.call.Stay || errors.Is(cause, ErrCancelled) {
		v.s.stopRun(v.task.ID, errTaskCancelled)
		v.s.work.Go(func() { v.s.withdraw(v.task.ID, leftMessage, 0) })
	}
	return Answered{}, cause
}

// becomeTask makes a task of the call. While the store is down it is tried again.
func (v *visit) becomeTask(ctx context.Context) (a Answered, err error, done bool) {
	var t Task
	if v.run != nil {
		t, err = v.run.becomeTask()
	} else {
		retain := retainFor(v.call, v.policy)
		change := Change{Op: v.s.op(), Visible: true, TTL: v.task.TTL + retain, Retain: retain}
		err = v.s.within(ctx, func(ctx context.Context) (err error) {
			t, err = v.s.store.Apply(ctx, v.task.ID, nil, change)
			return err
		})
		if err == nil {
			v.s.hold(ending{made: t, end: change})
		}
	}
	switch {
	case err != nil: // the store is away, or the call has ended, of which there is news
		return Answered{}, nil, false
	case ctx.Err() != nil:
		a, err = v.leave(ctx)
		return a, err, true
	}
	return Answered{Task: &t}, nil, true
}
