package shim

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"taskgate/internal/metrics"
)

// Query says which calls and tasks an operator wants to see. Fields that are zero let all through.
type Query struct {
	Upstream string
	Tool     string // or the method of what is no tools/call
	Statuses []Status
	Owner    *string
	// Lists are the list keys of the Owner. Where there are some, tasks without a list key are not found.
	Lists   []string
	Replica Replica // runs them: none that has ended
	Prefix  string  // of the id
	// Before and After bound when they were made.
	Before, After time.Time
	Unknown       bool // those with an unknown outcome alone
	Oldest        bool // first; else the newest
	Limit         int
	Cursor        string // of the page before, with the same Query; "" for the first one
}

// Standing is what a store knows of a replica.
type Standing struct {
	Replica Replica
	Alive   bool
	Seen    time.Time // its last heartbeat
	Running int       // the calls that are its to run
	About   []byte    // what it last said with Report; nil where that is over
}

// Overview is what a store can do for operators besides what a Store does. Nothing of it is needed for calls and
// tasks. Every method may return ErrUnavailable.
type Overview interface {
	// Search returns a page, as summaries, by when they were made, with the cursor of the next ("" after the last).
	// A cursor stays valid while tasks come and go. A page may be short, or empty, where much had to be looked through.
	// Calls that have not become tasks are found as well. ErrCursor.
	Search(ctx context.Context, q Query) ([]Task, string, error)
	// Sweep forgets some of what Search has to look through and does not find any more.
	Sweep(ctx context.Context) error
	// Report says something about a replica to all of them, for a time.
	Report(ctx context.Context, r Replica, about []byte, keep time.Duration) error
	// Replicas are those that are alive, and those that are gone and not forgotten, by name.
	Replicas(ctx context.Context) ([]Standing, error)
	// Note keeps what a replica has to say of a minute, in place of what it has said before.
	Note(ctx context.Context, r Replica, minute time.Time, note []byte, keep time.Duration) error
	// Notes are those of all replicas about some minutes, in their order.
	Notes(ctx context.Context, minutes []time.Time) ([]map[Replica][]byte, error)
	// Changes calls changed when some task has changed, or may have unnoticed, until ctx ends.
	Changes(ctx context.Context, changed func()) error
}

// Operator sees and stops everybody's calls and tasks. It asks for no Principal: whoever has one has the right to
// all of that, which is for its holder to check.
type Operator struct {
	s     *Shim
	store Overview
}

// NewOperator returns the one of a replica. o goes with the Store of the Shim.
func NewOperator(s *Shim, o Overview) *Operator { return &Operator{s: s, store: o} }

// Search is that of the Overview. Where the query names an Owner, its tasks are looked for in the lists of the Owner.
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

// Cancel ends a call or a task as Cancelled, in the name of nobody: its server is told without a token of its owner. by is
// who wants it, for the timeline. One that has ended is returned with ErrFinal. ErrNotFound.
func (o *Operator) Cancel(ctx context.Context, id ID, by string) (Task, error) {
	t, err := o.s.readRecord(ctx, id, Summary)
	if err != nil {
		return Task{}, err
	}
	return o.s.cancelTask(ctx, t, Change{Moments: []Moment{{Kind: KindCancelled, Detail: "operator " + by}}}, messageStopped, "an operator cancels a task")
}

// Arguments are those of the call of a task that was read WithAll, as long as they are kept.
func Arguments(t Task) json.RawMessage {
	var rec callRecord
	if json.Unmarshal(t.Call, &rec) != nil {
		return nil
	}
	return rec.Request.Params
}

// Loads are what this replica does for each upstream, by name.
func (o *Operator) Loads() map[string]metrics.Load { return o.s.readLoads() }

// readLoads reads what operators and metrics see of what runs.
func (s *Shim) readLoads() map[string]metrics.Load {
	all := map[string]metrics.Load{}
	for name, srv := range *s.servers.Load() {
		all[name] = metrics.Load{Calls: srv.slots.inFlight(), Queued: srv.countWaiting(), Tools: map[string]metrics.ToolLoad{}}
	}
	for _, r := range s.runs.listRuns() {
		if tools := all[r.srv.name].Tools; tools != nil { // else of an upstream that is not served any more
			tool := r.call.Request.tool()
			tools[tool] = withRun(tools[tool], r)
		}
	}
	return all
}

// withRun is the load of a tool with one more run. One that writes just now, maybe to a client that does not read,
// counts as it did before: whoever counts does not wait for it.
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

// loadOf is the load of one run. Its lock is held.
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

// Draining reports whether this replica takes no new calls.
func (o *Operator) Draining() bool { return o.s.draining.Load() }
