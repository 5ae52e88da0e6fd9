package shim

import (
	"context"
	"errors"
	"testing"
	"time"
)

// renewed is a Store whose first Apply is refused because the lease is not the task's any
// more; meanwhile the run has got another one.
type renewed struct {
	Store
	run    *run
	leases []Lease
}

func (s *renewed) Apply(_ context.Context, _ ID, l *Lease, _ Change) (Task, error) {
	s.leases = append(s.leases, *l)
	if len(s.leases) == 1 {
		s.run.mu.Lock()
		s.run.record.lease = Lease{Replica: "a"}
		s.run.mu.Unlock()
		return Task{}, ErrLeaseLost
	}
	return Task{}, nil
}

// newTestRun is a run of a task under a lease, without a call.
func newTestRun(store Store, l Lease) *run {
	r := &run{core: &core{store: store, life: newLife()}, record: &record{lease: l}}
	r.record.run, r.inbox.run, r.turn = r, r, newTurn(r)
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	return r
}

// A write that is refused under a lease which the run does not have any more is made again,
// and ends nothing.
func TestRefusalUnderAnOlderLease(t *testing.T) {
	store := &renewed{}
	r := newTestRun(store, Lease{Replica: "a", Adoption: 1})
	store.run = r
	if err := r.record.persistChange(t.Context(), func() Change { return Change{TTL: time.Hour} }); err != nil {
		t.Error(err)
	}
	if len(store.leases) != 2 || store.leases[1] != (Lease{Replica: "a"}) || r.ctx.Err() != nil {
		t.Errorf("written under %v; the run: %v", store.leases, context.Cause(r.ctx))
	}
	r.record.obeyRefusal(ErrLeaseLost, Lease{Replica: "a", Adoption: 1}, Task{})
	if r.ctx.Err() != nil {
		t.Error("a late refusal under the old lease ends the run")
	}
	r.record.obeyRefusal(ErrLeaseLost, Lease{Replica: "a"}, Task{})
	if !errors.Is(context.Cause(r.ctx), ErrDetached) {
		t.Errorf("a refusal under its own lease leaves the run with %v", context.Cause(r.ctx))
	}
}

// After a failover two runs may have adopted a task under the same number: whose task it
// is, the replica's name says.
func TestLeaseOfAnotherReplica(t *testing.T) {
	own := Lease{Replica: "a", Adoption: 1}
	r := newTestRun(nil, own)
	if !r.inbox.receiveState(Task{Status: Working, Lease: Lease{Replica: "b", Adoption: 1}}, own) {
		t.Error("the state was not taken")
	}
	if !errors.Is(context.Cause(r.ctx), ErrDetached) {
		t.Errorf("the run goes on with another replica's task: %v", context.Cause(r.ctx))
	}
}
