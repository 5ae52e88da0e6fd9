package runner

import (
	"context"
	"errors"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/node"
)

// renewed is a Store whose first Apply is refused because the lease is not the task's any
// more; meanwhile the run has got another one.
type renewed struct {
	shim.Store
	run    *Run
	leases []shim.Lease
}

func (s *renewed) Apply(_ context.Context, _ shim.ID, l *shim.Lease, _ shim.Change) (shim.Task, error) {
	s.leases = append(s.leases, *l)
	if len(s.leases) == 1 {
		s.run.mu.Lock()
		s.run.record.Lease = shim.Lease{Replica: "a"}
		s.run.mu.Unlock()
		return shim.Task{}, shim.ErrLeaseLost
	}
	return shim.Task{}, nil
}

// newTestRun is a run of a task under a lease, without a call.
func newTestRun(store shim.Store, l shim.Lease) *Run {
	r := &Run{core: node.NewCore(node.Settings{Replica: l.Replica, Store: store}), record: record{Task: shim.Task{Lease: l}}}
	r.assembleParts()
	r.Ctx, r.Cancel = context.WithCancelCause(context.Background())
	return r
}

// A write that is refused under a lease which the run does not have any more is made again,
// and ends nothing.
func TestRefusalUnderAnOlderLease(t *testing.T) {
	store := &renewed{}
	r := newTestRun(store, shim.Lease{Replica: "a", Adoption: 1})
	store.run = r
	if _, err := r.record.applyChange(t.Context(), func() shim.Change { return shim.Change{TTL: time.Hour} }); err != nil {
		t.Error(err)
	}
	if len(store.leases) != 2 || store.leases[1] != (shim.Lease{Replica: "a"}) || r.Ctx.Err() != nil {
		t.Errorf("written under %v; the run: %v", store.leases, context.Cause(r.Ctx))
	}
	r.record.obeyRefusal(shim.ErrLeaseLost, shim.Lease{Replica: "a", Adoption: 1}, shim.Task{})
	if r.Ctx.Err() != nil {
		t.Error("a late refusal under the old lease ends the run")
	}
	r.record.obeyRefusal(shim.ErrLeaseLost, shim.Lease{Replica: "a"}, shim.Task{})
	if !errors.Is(context.Cause(r.Ctx), shim.ErrDetached) {
		t.Errorf("a refusal under its own lease leaves the run with %v", context.Cause(r.Ctx))
	}
}

// After a failover two runs may have adopted a task under the same number: whose task it
// is, the replica's name says.
func TestLeaseOfAnotherReplica(t *testing.T) {
	own := shim.Lease{Replica: "a", Adoption: 1}
	r := newTestRun(nil, own)
	if !r.Inbox.receiveState(shim.Task{Status: shim.Working, Lease: shim.Lease{Replica: "b", Adoption: 1}}, own) {
		t.Error("the state was not taken")
	}
	if !errors.Is(context.Cause(r.Ctx), shim.ErrDetached) {
		t.Errorf("the run goes on with another replica's task: %v", context.Cause(r.Ctx))
	}
}
