package shim

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"taskgate/internal/metrics"
)

// Query selects the calls and tasks that an operator wants to see. Zero fields let all through.
type Query struct {
	Upstream string
	Tool     string // or the method, for other requests than tools/call
	Statuses []Status
	Owner    *string
	// Lists are the list keys of the Owner. If there are some, only tasks with a list key are found.
	Lists   []string
	Replica Replica // runs them, so they are still open
	Prefix  string  // of the id
	// Before and After bound the time of creation.
	Before, After time.Time
	Unknown       bool // only those with an unknown outcome
	Oldest        bool // first; else the newest
	Limit         int
	Cursor        string // from the page before, with the same Query; "" for the first page
}

// Standing is a store's knowledge of a replica.
type Standing struct {
	Replica Replica
	Alive   bool
	Seen    time.Time // its last heartbeat
	Running int       // the calls that it is to run
	About   []byte    // its last Report; nil once that has expired
}

// Overview has the operations of a store for operators, beyond those of a Store. Calls and tasks do not
// depend on it. Every method may return ErrUnavailable.
type Overview interface {
	// Search returns a page of summaries, by time of creation, with the cursor of the next ("" after the
	// last). A cursor stays valid while tasks come and go. A page may be short, or empty, if the search had
	// to go through many tasks. Hidden calls are found as well. ErrCursor.
	Search(ctx context.Context, q Query) ([]Task, string, error)
	// Sweep forgets some entries that Search looks through but whose tasks are gone.
	Sweep(ctx context.Context) error
	// Report publishes a text about a replica to all replicas, for a time.
	Report(ctx context.Context, r Replica, about []byte, keep time.Duration) error
	// Replicas returns those that are alive, and the lost ones that are still known, by name.
	Replicas(ctx context.Context) ([]Standing, error)
	// Note keeps a replica's note about a minute, in place of an earlier one.
	Note(ctx context.Context, r Replica, minute time.Time, note []byte, keep time.Duration) error
	// Notes returns those of all replicas about some minutes, in their order.
	Notes(ctx context.Context, minutes []time.Time) ([]map[Replica][]byte, error)
	// Changes calls changed when some task has changed, or may have changed unnoticed, until ctx ends.
	Changes(ctx context.Context, changed func()) error
}

// Operator sees and stops everybody's calls and tasks. Its holder has to check the right of its users to all
// of that, since it takes no Principal.
type Operator struct {
	s     *Shim
	store Overview
}

// NewOperator returns the operator of a replica. o goes with the Store of the Shim.
func NewOperator(s *Shim, o Overview) *Operator { return &Operator{s: s, store: o} }

// Search is that of the Overview. If the query names an Owner, it uses the lists of the Owner.
func (o *Operator) Search(ctx context.Context, q Query) (tasks []Task, next string, err error) {
	if q.Owner != nil && *q.Owner != "" {
		for name := range *o.s.servers.Load() {
			if q.Upstream == "" || q.Upstream == name {
				q.Lists = append(q.Lists, listKey(Principal{Subject: *q.Owner}, name))
			}
		}
		slices.Sort(q.Lists)
	}
	tasks, err = withPatience(ctx, o.s.core, func(ctx context.Context) (found []Task, err error) {
		found, next, err = o.store.Search(ctx, q)
		return found, err
	})
	return tasks, next, err
}

// Read returns a call or a task. ErrNotFound.
func (o *Operator) Read(ctx context.Context, id ID, part Part) (Task, error) {
	return o.s.readRecord(ctx, id, part)
}

// messageStopped is the status message of a task that an operator cancelled.
const messageStopped = "cancelled by an operator"

// Cancel ends a call or a task as Cancelled on an operator's behalf: its server is told without a token of
// its owner. by names the operator, for the timeline. If it has ended, it is returned with ErrFinal.
// ErrNotFound.
func (o *Operator) Cancel(ctx context.Context, id ID, by string) (Task, error) {
	t, err := o.s.readRecord(ctx, id, Summary)
	if err != nil {
		return Task{}, err
	}
	return o.s.cancelTask(ctx, t, Change{Moments: []Moment{{Kind: KindCancelled, Detail: "operator " + by}}}, messageStopped, "an operator cancels a task")
}

// Arguments returns the params of the call of a task that was read WithAll, as long as they are kept.
func Arguments(t Task) json.RawMessage {
	var rec callRecord
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
		calls, queued := srv.slots.countCalls()
		all[name] = metrics.Load{Calls: calls, Queued: queued, Tools: map[string]metrics.ToolLoad{}}
	}
	for _, r := range s.runs.listRuns() {
		if tools := all[r.srv.name].Tools; tools != nil { // else its upstream was removed
			tool := r.call.Request.tool()
			tools[tool] = withRun(tools[tool], r)
		}
	}
	return all
}

// TaskUsage returns how full max_tasks is at the server where it is fullest, from 0 to 1.
func (s *Shim) TaskUsage() float64 {
	most := 0.0
	for _, srv := range *s.servers.Load() {
		most = max(most, srv.tasks.Usage())
	}
	return most
}

// withRun returns the load of a tool with one more run. A run that holds its lock just now, maybe for a
// client that does not read, counts as it did before, so that counting goes on at once.
func withRun(l metrics.ToolLoad, r *run) metrics.ToolLoad {
	if r.mu.TryLock() {
		one := loadOf(r)
		r.mu.Unlock()
		r.observed.counted.Store(&one)
	}
	if one := r.observed.counted.Load(); one != nil {
		return l.WithLoad(*one)
	}
	return l
}

// loadOf returns the load of one run. Its lock is held.
func loadOf(r *run) (l metrics.ToolLoad) {
	open := len(openQuestions(r.box.read.questions))
	if open > 0 {
		l.Questions, l.Asked = open, r.box.since
	}
	switch {
	case r.record.hidden:
		return l
	case r.queuing:
		l.Queued = 1
	case open > 0:
		l.InputRequired = 1
	default:
		l.Running = 1
	}
	l.Oldest = r.record.born
	return l
}

// Draining reports whether this replica refuses new calls.
func (o *Operator) Draining() bool { return o.s.draining.Load() }
