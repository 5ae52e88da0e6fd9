package engine

import (
	"context"
	"encoding/json"
	"slices"

	"taskgate/internal/budget"
	"taskgate/internal/metrics"
	"taskgate/shim"
	"taskgate/shim/node"
	"taskgate/shim/runner"
)

// Operator sees and stops everybody's calls and tasks. Its holder has to check the right of its users to all
// of that, since it takes no Principal.
type Operator struct {
	s     *Shim
	store shim.Overview
}

// NewOperator returns the operator of a replica. o goes with the Store of the Shim.
func NewOperator(s *Shim, o shim.Overview) *Operator { return &Operator{s: s, store: o} }

// Search is that of the Overview. If the query names an Owner, it uses the lists of the Owner.
func (o *Operator) Search(ctx context.Context, q shim.Query) (tasks []shim.Task, next string, err error) {
	if q.Owner != nil && *q.Owner != "" {
		for name := range *o.s.servers.Load() {
			if q.Upstream == "" || q.Upstream == name {
				q.Lists = append(q.Lists, shim.ListKey(shim.Principal{Subject: *q.Owner}, name))
			}
		}
		slices.Sort(q.Lists)
	}
	tasks, err = node.WithPatience(ctx, o.s.Core, func(ctx context.Context) (found []shim.Task, err error) {
		found, next, err = o.store.Search(ctx, q)
		return found, err
	})
	return tasks, next, err
}

// Read returns a call or a task. ErrNotFound.
func (o *Operator) Read(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	return o.s.ReadRecord(ctx, id, part)
}

// messageStopped is the status message of a task that an operator cancelled.
const messageStopped = "cancelled by an operator"

// Cancel ends a call or a task as Cancelled on an operator's behalf: its server is told without a token of
// its owner. by names the operator, for the timeline. If it has ended, it is returned with ErrFinal.
// ErrNotFound.
func (o *Operator) Cancel(ctx context.Context, id shim.ID, by string) (shim.Task, error) {
	t, err := o.s.ReadRecord(ctx, id, shim.Summary)
	if err != nil {
		return shim.Task{}, err
	}
	return o.s.cancelTask(ctx, t, shim.Change{Moments: []shim.Moment{{Kind: shim.KindCancelled, Detail: "operator " + by}}}, messageStopped, "an operator cancels a task")
}

// RerunRefusal says why a task that was read WithAll cannot be run again; "" if it can.
func (o *Operator) RerunRefusal(t shim.Task) string {
	_, refusal := o.readRerun(t)
	return refusal
}

// readRerun reads what is kept of the call of a task, to run it again, or says why that cannot be.
func (o *Operator) readRerun(t shim.Task) (kept runner.KeptRequest, refusal string) {
	srv, err := o.s.findServer(t.Upstream)
	switch {
	case !t.Status.Final():
		return kept, "the task has not ended"
	case t.Status != shim.Failed || t.Method != shim.CallTool:
		return kept, "only a tool call that has failed, or whose outcome is unknown, can be run again"
	case err != nil || srv.Removed:
		return kept, "its server is no longer offered"
	}
	err = json.Unmarshal(t.Arguments, &kept)
	switch {
	case !srv.PolicyFor(shim.Request{Method: t.Method, Name: t.Tool, Says: kept.Says}).Rerun:
		return kept, "the policy of its tool does not allow that (rerun: on)"
	case t.RerunAs != "":
		return kept, "it has been run again already, as " + string(t.RerunAs)
	case t.Arguments == nil:
		return kept, "its arguments were not kept"
	case err != nil:
		return kept, "its arguments cannot be read"
	}
	return kept, ""
}

// Rerun runs the call of a failed task again, as a new task of the same owner. by names the operator, for the timeline.
// The server gets nothing of the owner's credentials, and no answer to its questions. *ChangeError, *BusyError,
// ErrNotFound, and the errors of Call.
func (o *Operator) Rerun(ctx context.Context, id shim.ID, by string) (old, made shim.Task, err error) {
	if old, err = o.s.ReadRecord(ctx, id, shim.WithAll); err != nil {
		return old, made, err
	}
	kept, refusal := o.readRerun(old)
	if refusal != "" {
		return old, made, &shim.ChangeError{Reason: refusal}
	}
	hold := o.s.budget.Hold()
	defer hold.Release()
	if err = takeRoom(budget.With(ctx, hold), int64(len(kept.Params))); err != nil {
		return old, made, err
	}
	who := shim.PrincipalOf(old)
	// The request of the operator has nothing that belongs to the call: that lives with this replica.
	a, err := o.s.Call(budget.With(o.s.Life.Ctx, hold), shim.Call{
		Upstream: old.Upstream, Principal: who, Origin: old.Origin, Handle: true, Demand: true, Stay: true, TTL: old.Retain,
		RerunOf: old.ID, RerunBy: by,
		Request: shim.Request{
			Method: old.Method, Name: old.Tool, Params: kept.Params, Shown: kept.Shown, Says: kept.Says,
			Session: shim.Session{Key: who.Subject, Principal: who.Subject, Legacy: kept.Legacy},
		},
	})
	if err != nil {
		return old, made, err
	}
	return old, *a.Task, nil
}

// Arguments returns the params of the call of a task that was read WithAll, as long as they are kept.
func (o *Operator) Arguments(t shim.Task) json.RawMessage {
	var kept runner.KeptRequest
	if t.Arguments != nil && json.Unmarshal(t.Arguments, &kept) == nil {
		return kept.Params
	}
	var rec runner.CallRecord
	if json.Unmarshal(t.Call, &rec) != nil {
		return nil
	}
	return rec.Request.Params
}

// Loads returns this replica's load of each upstream, by name.
func (o *Operator) Loads() map[string]metrics.Load { return o.s.readLoads() }

func (s *Shim) readLoads() map[string]metrics.Load {
	all := map[string]metrics.Load{}
	for name, srv := range *s.servers.Load() {
		calls, queued := srv.Slots.CountCalls()
		all[name] = metrics.Load{Calls: calls, Queued: queued, Tools: map[string]metrics.ToolLoad{}}
	}
	for _, r := range s.runs.ListRuns() {
		if tools := all[r.Srv.Name].Tools; tools != nil { // else its upstream was removed
			tool := r.Call.Request.Tool()
			tools[tool] = runner.WithRun(tools[tool], r)
		}
	}
	return all
}

// Shares returns how many tasks each share runs at this replica.
func (o *Operator) Shares() map[shim.Share]int {
	all := make(map[shim.Share]int)
	for _, srv := range *o.s.servers.Load() {
		for share, n := range srv.Tasks.Shares() {
			all[share] += n
		}
	}
	return all
}

// TaskUsage returns how full max_tasks is at the server where it is fullest, from 0 to 1.
func (s *Shim) TaskUsage() float64 {
	most := 0.0
	for _, srv := range *s.servers.Load() {
		most = max(most, srv.Tasks.Usage())
	}
	return most
}

// Draining reports whether this replica refuses new calls.
func (o *Operator) Draining() bool { return o.s.draining.Load() }
