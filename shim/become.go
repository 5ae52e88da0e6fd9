package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// callRecord is Task.Call: what a runner on another replica needs to go on.
type callRecord struct {
	Request Request `json:"request"`
	// Runs counts how often the call was begun, for recover: retry.
	Runs int `json:"runs"`
	// Firm says that a record without a checkpoint is of a call that was not sent. It
	// is not where the caller is served without a task if creating seems to fail: a
	// creation whose reply was lost leaves such a record behind, and the call goes
	// out all the same.
	Firm bool `json:"firm,omitempty"`
	// Handle, Partials and Streaming are those of the Call. A hidden record may become
	// a task of a caller who takes one.
	Handle    bool `json:"handle,omitempty"`
	Partials  bool `json:"partials,omitempty"`
	Streaming bool `json:"streaming,omitempty"`
	// Asking is how the caller can be asked, Until when the time to answer the open
	// questions is over, from the record's creation, and Keys how many keys of
	// questions were made.
	Asking Asking        `json:"asking,omitempty"`
	Until  time.Duration `json:"until,omitempty"`
	Keys   int           `json:"keys,omitempty"`
	// Round is set while the server waits for nothing but a retry with answers.
	Round *round `json:"round,omitempty"`
}

// becomeTask makes a durable task of the call. From its success on, the caller's
// context no longer matters to the call, and the handle is its answer. errEnded
// says that the reply was there first.
func (r *run) becomeTask() (Task, error) { return r.keep(true) }

// keep sees to it that the call has a record, visible or not (design.md 0.13).
func (r *run) keep(visible bool) (Task, error) {
	r.mu.Lock()
	r.awaitMaking()
	switch {
	case r.ended:
		r.mu.Unlock()
		return Task{}, errEnded
	case r.task != nil && (!visible || !r.task.hidden):
		defer r.mu.Unlock()
		return r.task.made, nil
	case r.task != nil:
		return r.revealing()
	}
	made := make(chan struct{})
	r.making = made
	draft, begin := r.draft()
	if !visible {
		draft.Visible, draft.TTL, draft.Retain = false, r.inputTimeout()+abandonAfter+hiddenRetain, hiddenRetain
	}
	r.mu.Unlock()

	t, err := r.create(draft, begin)

	r.mu.Lock()
	r.making = nil
	if err == nil {
		if t.Visible {
			r.leave()
			r.stream = nil
		}
		if r.mark != nil && t.Checkpoint == nil {
			r.moved = true // what is stored is from an attempt before the call was sent
		}
		if r.moved || r.message != draft.StatusMessage {
			r.fold()
		}
		if r.batcher != nil {
			r.batcher.storedUpTo(t.Position)
			r.stir()
		}
	}
	r.mu.Unlock()
	close(made)
	if err == nil && visible && !t.Visible { // an attempt to store it hidden got through
		return r.keep(true)
	}
	return t, err
}

// draft is the task as it is known now, without what create adds, and the batches
// that it begins with: what was said before there is a handle. r.mu is held.
func (r *run) draft() (Task, []Batch) {
	var begin []Batch
	if r.batcher != nil {
		r.closeBatch()
		begin, _ = r.batcher.batches()
	}
	retain := r.retain()
	r.moved = false
	t := Task{
		Owner:         r.call.Principal.Owner(),
		ListKey:       listKey(r.call.Principal, r.srv.name),
		Upstream:      r.srv.name,
		Origin:        r.call.Origin,
		Visible:       true,
		Status:        Working,
		StatusMessage: r.message,
		TTL:           retain,
		Retain:        retain,
		PollInterval:  r.policy.PollInterval,
		Lease:         Lease{Replica: r.s.replica},
		Method:        r.call.Request.Method,
		Tool:          r.call.Request.Name,
		Checkpoint:    r.mark,
		Progress:      TaskProgress{Token: r.call.ProgressToken, Params: r.progress},
		Call:          r.callRecord(r.mark != nil),
	}
	return t, begin
}

// leastTTL is the shortest time that a caller can have a task kept for.
const leastTTL = 2 * time.Second

// retain is how long the task is kept after its end: as the caller wishes, within
// bounds (L10). A task whose end nobody who polls it could see would be of no use,
// and a running one would have to be prolonged all the time.
func (r *run) retain() time.Duration { return retainFor(r.call, r.policy) }

func retainFor(c Call, p Policy) time.Duration {
	d := p.TTL
	if c.TTL > 0 {
		d = max(c.TTL, leastTTL, 2*p.PollInterval)
	}
	if p.MaxTTL > 0 {
		d = min(d, p.MaxTTL)
	}
	return d
}

// callRecord keeps the arguments only where a later run may need them: until the
// call is sent, and where its owner allows a second one (design.md 0.13).
func (r *run) callRecord(sent bool) json.RawMessage {
	rec := callRecord{
		Request: r.call.Request, Runs: r.runs, Firm: r.firm,
		Handle: r.call.Handle, Partials: r.call.Partials, Streaming: r.call.Streaming,
		Asking: r.call.Asking, Until: r.box.until, Keys: r.box.made,
	}
	if r.round != nil && r.round.noted {
		rec.Round = r.round
	}
	if sent && !r.policy.Retry && r.round == nil {
		rec.Request.Params = nil
	}
	b, err := json.Marshal(rec)
	if err != nil {
		return nil // Params are JSON that was parsed; there is nothing to fail
	}
	return b
}

// create admits the task, writes it and makes it this run's.
func (r *run) create(t Task, begin []Batch) (Task, error) {
	counted, err := r.s.admit(r.srv, t.Owner)
	if err != nil {
		return Task{}, err
	}
	if err := r.name(&t); err != nil {
		r.s.dismiss(counted)
		return Task{}, err
	}
	span := r.startSpan(&t)
	r.s.expect(t.ID)
	r.reading.done(0, r.s.epoch.Load())
	var stored Task
	err = r.s.within(r.base, func(ctx context.Context) (err error) {
		if err = r.s.alive(ctx); err == nil {
			stored, err = r.s.store.Create(ctx, t, begin...)
		}
		return err
	})
	if err != nil {
		r.maybe = &t
		span.End()
		r.s.dismiss(counted)
		return Task{}, fmt.Errorf("create a task: %w", err)
	}
	t.CreatedAt, t.UpdatedAt = stored.CreatedAt, stored.UpdatedAt // of the store's clock
	r.adoptTask(stored, &taskState{id: t.ID, made: t, hidden: !stored.Visible, lease: t.Lease, span: span, counted: counted})
	return stored, nil
}

// name gives the task its id and operation: those of the attempt before, if its
// reply was lost, so that there is never a second record.
func (r *run) name(t *Task) (err error) {
	if r.maybe != nil {
		t.ID, t.Op = r.maybe.ID, r.maybe.Op
		return nil
	}
	t.ID, err = NewID()
	t.Op = r.s.op()
	return err
}

// adoptTask makes a stored task this run's own and starts keeping its promises.
func (r *run) adoptTask(t Task, ts *taskState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ts.born = time.Now().Add(-max(0, t.UpdatedAt.Sub(t.CreatedAt)))
	ts.refold = time.Now().Add(r.leastFold())
	ts.raised = t.TTL
	ts.over, ts.writing = make(chan struct{}), make(chan struct{}, 1)
	r.task = ts
	if heard := r.s.register(r); heard {
		r.reread()
	}
	r.keepTTL(t.Retain)
}

// admit counts a task of this replica against the limits, or refuses it with a
// *BusyError.
func (s *Shim) admit(srv *server, owner string) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := countKeys(srv, owner)
	if srv.MaxTasks > 0 && s.tasks[keys[0]] >= srv.MaxTasks {
		return nil, &BusyError{Limit: "tasks on this server", RetryAfter: retryBusy}
	}
	if len(keys) > 1 && srv.MaxTasksPerOwner > 0 && s.tasks[keys[1]] >= srv.MaxTasksPerOwner {
		return nil, &BusyError{Limit: "tasks of this caller", RetryAfter: retryBusy}
	}
	s.add(keys)
	return keys, nil
}

// count counts a task that cannot be refused: it was adopted.
func (s *Shim) count(srv *server, owner string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := countKeys(srv, owner)
	s.add(keys)
	return keys
}

// countKeys are what a task counts towards: its server, and its owner there if it
// has one.
func countKeys(srv *server, owner string) []string {
	keys := []string{"server " + srv.name}
	if owner != "" {
		keys = append(keys, "owner "+srv.name+" "+owner)
	}
	return keys
}

// add counts. s.mu is held.
func (s *Shim) add(keys []string) {
	for _, k := range keys {
		s.tasks[k]++
	}
}

// dismiss gives back what admit counted.
func (s *Shim) dismiss(keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range keys {
		if s.tasks[k]--; s.tasks[k] <= 0 {
			delete(s.tasks, k)
		}
	}
}

// register makes a run its task's, and reports whether there was an event of that before.
func (s *Shim) register(r *run) (heard bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	heard = s.coming[r.task.id]
	delete(s.coming, r.task.id)
	s.runs[r.task.id] = r
	return heard
}

func (s *Shim) unregister(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs[r.task.id] == r {
		delete(s.runs, r.task.id)
	}
}

// stopRun ends the upstream call of a task, if this replica runs it.
func (s *Shim) stopRun(id ID, cause error) {
	s.mu.Lock()
	r := s.runs[id]
	s.mu.Unlock()
	if r != nil {
		r.cancel(cause)
	}
}

// lost ends the upstream call where a write under this lease told that the task is not, or
// no longer, this replica's to run. If the run has had another lease since, a refusal says
// nothing. A task that is unknown is no such case unless it was
// hidden: nothing that runs expires, so the store has forgotten it, and its end brings
// it back (design.md 0.20).
func (r *run) lost(err error, under Lease) {
	switch {
	case errors.Is(err, ErrLeaseLost):
		if under == r.lease() {
			r.cancel(ErrDetached)
		}
	case errors.Is(err, ErrFinal), errors.Is(err, ErrNotFound) && r.isHidden():
		r.cancel(errTaskCancelled)
	}
}
