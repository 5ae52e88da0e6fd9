package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// kind is what goes wrong in a run of a scenario, once.
type kind string

// The kinds of faults. Each hits the first operation (or event) from the n-th on that it
// can hit.
const (
	noFault    kind = ""
	readFails  kind = "read"      // one read is not made and fails
	readsFail  kind = "reads"     // so do all reads of that replica for readsAway
	replyLost  kind = "lost"      // a write is executed, and its reply does not arrive
	late       kind = "late"      // one hangs until its caller gives up, and is executed then
	later      kind = "later"     // the same of a write, which is executed lateBy after that
	frozen     kind = "frozen"    // all hang for frozenFor, or until their caller gives up, and are executed then
	unheard    kind = "adopted"   // an adoption is executed, and nobody ever hears of it
	eventLost  kind = "event"     // an event is not heard
	backOne    kind = "back"      // the store is again as it was one operation before
	backFour   kind = "back-four" // four operations before
	backLong   kind = "back-long" // backBy before
	clientActs kind = "act"       // what the client does happens after the n-th operation, before its reply
)

// How long a fault lasts.
const (
	readsAway = 5 * time.Second
	lateBy    = 20 * time.Second
	frozenFor = 4 * time.Second  // more than a client waits, and less than a question
	backBy    = 8 * time.Second  // more than the expiry of a heartbeat
	storeMost = 10 * time.Second // what a Store waits for an answer, where its caller waits for ever
)

// lasts is how long a fault holds things up by itself, and after how long nothing of it
// can come any more.
func (k kind) lasts() (own, echo time.Duration) {
	switch k {
	case readsFail:
		return readsAway, readsAway
	case frozen:
		return frozenFor + 5*time.Second, frozenFor // there are pauses between attempts
	case late:
		return storeMost, storeMost
	case later:
		return storeMost + lateBy, storeMost + lateBy
	case backOne, backFour, backLong:
		return 15 * time.Second, 0 // nobody is taken for gone for an expiry, and then for another
	}
	return 0, 0
}

// kinds are all of them. The first operation of the first one is never left out.
var kinds = []kind{late, readFails, readsFail, replyLost, later, frozen, unheard, eventLost, backOne, backFour, backLong, clientActs}

// hits reports whether this can happen to an operation.
func (k kind) hits(p point) bool {
	switch k {
	case readFails, readsFail:
		return p.read
	case replyLost, later:
		return !p.read
	case unheard:
		return p.adopts
	}
	return k != noFault
}

// back reports whether the store loses what it had acknowledged.
func (k kind) back() bool { return strings.HasPrefix(string(k), "back") }

// faults has one fault happen at one point of a scenario, and counts the points.
type faults struct {
	memory *redistest.Memory
	kind   kind
	n      int
	// from is the operation from whose beginning the store keeps the content it may go
	// back to; one of 0 is kept when the scenario begins.
	from int

	mu     sync.Mutex
	begun  time.Time // zero while nothing is counted
	ops    []point
	events []point
	fired  string // what was hit, "" before
	hit    time.Time
	act    func() // what the client does when the fault says so; nil while it cannot
	away   map[shim.Replica]time.Time
	before redistest.Content
	lost   map[string]string            // tasks that the store had, and has forgotten whole, and who ran them
	bare   map[string]bool              // tasks that are without a checkpoint again
	adopts atomic.Int32                 // adoptions under way
	owed   map[shim.Replica][]shim.Task // adoptions whose replies were lost
	busy   sync.WaitGroup               // late operations
	over   context.Context
}

// point is an operation, or an event, of a scenario.
type point struct {
	name   string
	read   bool
	adopts bool
	at     time.Duration
}

// begin has the counting begin.
func (f *faults) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = time.Now()
	if f.kind.back() {
		f.before = f.memory.Snapshot()
	}
}

// end has nothing counted any more, and nothing go wrong.
func (f *faults) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begun = time.Time{}
}

// spell lists all that was counted.
func (f *faults) spell() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out strings.Builder
	for i, p := range f.ops {
		fmt.Fprintf(&out, "\n%3d %v %s", i, p.at, p.name)
	}
	for i, p := range f.events {
		fmt.Fprintf(&out, "\nevent %d %v %s", i, p.at, p.name)
	}
	return out.String()
}

// what says what was hit.
func (f *faults) what() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

// strike counts an operation and returns what goes wrong with it, and its number.
func (f *faults) strike(r shim.Replica, name string, read bool) (k kind, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun.IsZero() {
		return noFault, -1
	}
	at := time.Since(f.begun)
	p := point{fmt.Sprintf("%s %s", r, name), read, name == "Adopt", at}
	f.ops = append(f.ops, p)
	n = len(f.ops) - 1
	if f.kind.back() && n == f.from && n > 0 && f.fired == "" {
		f.before = f.memory.Snapshot()
	}
	if f.fired != "" {
		if read && time.Now().Before(f.away[r]) {
			return readFails, n
		}
		if f.kind == frozen && time.Since(f.hit) < frozenFor {
			return frozen, n
		}
		return noFault, n
	}
	if n < f.n || f.kind == eventLost || f.kind == clientActs || !f.kind.hits(p) {
		return noFault, n
	}
	f.fired, f.hit = fmt.Sprintf("operation %d, %s %s, after %v", n, r, name, at), time.Now()
	if f.kind == readsFail {
		f.away[r] = time.Now().Add(readsAway)
	}
	return f.kind, n
}

// missed counts an event and reports whether it is lost.
func (f *faults) missed(r shim.Replica, e shim.Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun.IsZero() {
		return false
	}
	at := time.Since(f.begun)
	f.events = append(f.events, point{name: fmt.Sprintf("%s hears version %d, goodbye %t", r, e.Version, e.Goodbye), at: at})
	n := len(f.events) - 1
	if f.kind != eventLost || f.fired != "" || n < f.n {
		return false
	}
	f.fired = fmt.Sprintf("event %d, %s, after %v", n, f.events[n].name, at)
	return true
}

// acting says what the client does when the fault says so.
func (f *faults) acting(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.act = do
}

// acts has the client act if that is due after the n-th operation.
func (f *faults) acts(n int) {
	f.mu.Lock()
	act := f.act
	due := f.kind == clientActs && f.fired == "" && !f.begun.IsZero() && n >= f.n && act != nil
	if due {
		f.fired = fmt.Sprintf("after operation %d, %s", n, f.ops[n].name)
	}
	f.mu.Unlock()
	if due {
		act()
		<-time.After(time.Millisecond) // whatever that brings about has happened
	}
}

// faultStore is a replica's Store that has the faults of its world.
type faultStore struct {
	shim.Store
	*faults
	replica shim.Replica
	dead    atomic.Bool // its process is gone: it does nothing any more, and nothing of it counts
}

// do makes one operation, or not.
func (s *faultStore) do(ctx context.Context, name string, read bool, run func(context.Context) error) error {
	_, err := reply(s, ctx, name, read, func(ctx context.Context) (struct{}, error) { return struct{}{}, run(ctx) })
	return err
}

// reply makes one operation, or not. Where the caller does not hear of it, it gets nothing.
func reply[T any](s *faultStore, ctx context.Context, name string, read bool, run func(context.Context) (T, error)) (none T, _ error) {
	if s.dead.Load() {
		return none, errDown
	}
	unheardOf := func(ctx context.Context) { _, _ = run(ctx) }
	k, n := s.strike(s.replica, name, read)
	switch k {
	case readFails, readsFail:
		return none, errDown
	case replyLost, unheard:
		unheardOf(ctx)
		return none, errDown
	case late, later:
		return none, s.late(ctx, k, unheardOf)
	case frozen:
		if thaw, err := s.freeze(ctx, unheardOf); !thaw {
			return none, err
		}
		return run(ctx)
	case backOne, backFour, backLong:
		if err := s.goBack(); err != nil {
			return none, err
		}
	}
	got, err := run(ctx)
	s.acts(n)
	return got, err
}

// goBack has the store lose what it got since the snapshot, as a Redis does that is
// killed and starts again at once.
func (f *faults) goBack() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost, f.bare = map[string]string{}, map[string]bool{}
	before := tasksOf(f.before)
	for id, fields := range tasksOf(f.memory.Snapshot()) {
		if before[id] == nil {
			f.lost[id], _, _ = strings.Cut(fields["lease"], "#")
			if f.adopts.Load() > 0 {
				f.lost[id] = "" // who had it may have lost it, and who gets it may not know it yet
			}
		}
		f.bare[id] = before[id]["checkpoint"] == "" && fields["checkpoint"] != ""
	}
	return f.memory.Restore(f.before)
}

// forgotten reports whether the store has forgotten a task whole: it is unknown until
// its end then, and written again with that (design.md 0.20). It says who ran it.
func (f *faults) forgotten(id shim.ID) (by string, is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	by, is = f.lost[string(id)]
	return by, is
}

// unmarked reports whether the store has forgotten how a task can be gone on with.
func (f *faults) unmarked(id shim.ID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bare[string(id)]
}

// forgets reports whether the store has forgotten any task whole.
func (f *faults) forgets() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.lost) > 0
}

// tasksOf are the records of tasks, by id, each with its fields.
func tasksOf(c redistest.Content) map[string]map[string]string {
	tasks := map[string]map[string]string{}
	for key, fields := range c.Hashes {
		if _, id, ok := strings.Cut(key, ":t:"); ok {
			tasks[id] = fields
		}
	}
	return tasks
}

// late makes an operation when its caller has given up.
func (s *faultStore) late(ctx context.Context, k kind, run func(context.Context)) error {
	most := time.NewTimer(storeMost)
	defer most.Stop()
	err := errDown
	select {
	case <-ctx.Done():
		err = errors.Join(shim.ErrUnavailable, ctx.Err())
	case <-most.C:
	}
	if k == late {
		run(s.over)
		return err
	}
	s.busy.Go(func() {
		select {
		case <-time.After(lateBy):
			run(s.over)
		case <-s.over.Done():
		}
	})
	return err
}

// freeze waits until the store goes on, and reports whether the caller did too. Otherwise
// it has the operation made then.
func (s *faultStore) freeze(ctx context.Context, run func(context.Context)) (bool, error) {
	s.mu.Lock()
	thaw := time.After(frozenFor - time.Since(s.hit))
	s.mu.Unlock()
	select {
	case <-thaw:
		return true, nil
	case <-ctx.Done():
	}
	s.busy.Go(func() {
		select {
		case <-thaw:
			run(s.over)
		case <-s.over.Done():
		}
	})
	return false, errors.Join(shim.ErrUnavailable, ctx.Err())
}

func (s *faultStore) Create(ctx context.Context, t shim.Task, b ...shim.Batch) (shim.Task, error) {
	return reply(s, ctx, "Create", false, func(ctx context.Context) (shim.Task, error) {
		return s.Store.Create(ctx, t, b...)
	})
}

func (s *faultStore) Get(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	return reply(s, ctx, "Get", true, func(ctx context.Context) (shim.Task, error) {
		return s.Store.Get(ctx, id, part)
	})
}

func (s *faultStore) List(ctx context.Context, key, cursor string, n int) ([]shim.Task, string, error) {
	type page struct {
		tasks []shim.Task
		next  string
	}
	got, err := reply(s, ctx, "List", true, func(ctx context.Context) (p page, err error) {
		p.tasks, p.next, err = s.Store.List(ctx, key, cursor, n)
		return p, err
	})
	return got.tasks, got.next, err
}

func (s *faultStore) Apply(ctx context.Context, id shim.ID, l *shim.Lease, c shim.Change) (shim.Task, error) {
	return reply(s, ctx, "Apply "+spellChange(c), false, func(ctx context.Context) (shim.Task, error) {
		return s.Store.Apply(ctx, id, l, c)
	})
}

// spellChange names what a change is for.
func spellChange(c shim.Change) string {
	var parts []string
	for name, is := range map[string]bool{
		"To " + string(c.To): c.To != "", "Ask": c.Ask != nil, "Answer": c.Answer != nil, "Take": c.Take != nil,
		"Visible": c.Visible, "TTL": c.TTL > 0, "Checkpoint": c.Checkpoint != nil, "Message": c.StatusMessage != nil, "Tail": c.Tail != nil,
	} {
		if is {
			parts = append(parts, name)
		}
	}
	return strings.Join(parts, "+")
}

func (s *faultStore) Batches(ctx context.Context, id shim.ID, skip int64) ([]json.RawMessage, error) {
	return reply(s, ctx, "Batches", true, func(ctx context.Context) ([]json.RawMessage, error) {
		return s.Store.Batches(ctx, id, skip)
	})
}

func (s *faultStore) Running(ctx context.Context, r shim.Replica, part int) ([]shim.Held, error) {
	return reply(s, ctx, "Running", true, func(ctx context.Context) ([]shim.Held, error) {
		return s.Store.Running(ctx, r, part)
	})
}

func (s *faultStore) Beat(ctx context.Context, r shim.Replica, ttl time.Duration) error {
	name := "Beat"
	if ttl == 0 {
		name = "goodbye"
	}
	return s.do(ctx, name, false, func(ctx context.Context) error { return s.Store.Beat(ctx, r, ttl) })
}

// Adopt hands out what an adoption came to whose reply was lost with the next one, as
// every Store does: as it is then.
func (s *faultStore) Adopt(ctx context.Context, r shim.Replica, upstreams []string, n int) ([]shim.Task, error) {
	var got []shim.Task
	gaveUp := false
	err := s.do(ctx, "Adopt", false, func(ctx context.Context) error {
		s.adopts.Add(1)
		defer s.adopts.Add(-1)
		tasks, err := s.Store.Adopt(ctx, r, upstreams, n)
		s.mu.Lock()
		defer s.mu.Unlock()
		if got = tasks; gaveUp {
			s.owe(r, tasks)
		}
		return err
	})
	s.mu.Lock()
	if gaveUp = err != nil; gaveUp {
		s.owe(r, got)
		s.mu.Unlock()
		return nil, err
	}
	out, owed := got, s.owed[r]
	s.owed[r] = nil
	s.mu.Unlock()
	for _, t := range owed {
		if t, err := s.Store.Get(ctx, t.ID, shim.WithRun); err == nil && t.Lease.Replica == r {
			out = append(out, t)
		}
	}
	return out, nil
}

// owe keeps adopted tasks of which the replica has not heard. f.mu is held.
func (f *faults) owe(r shim.Replica, tasks []shim.Task) {
	if f.kind != unheard {
		f.owed[r] = append(f.owed[r], tasks...)
	}
}

func (s *faultStore) Watch(ctx context.Context, ids ...shim.ID) iter.Seq2[shim.Event, error] {
	return s.hears(s.Store.Watch(ctx, ids...))
}

func (s *faultStore) Inbox(ctx context.Context, r shim.Replica) iter.Seq2[shim.Event, error] {
	return s.hears(s.Store.Inbox(ctx, r))
}

// hears leaves out an event that is lost. Synced is none: the store says it by itself.
func (s *faultStore) hears(events iter.Seq2[shim.Event, error]) iter.Seq2[shim.Event, error] {
	return func(yield func(shim.Event, error) bool) {
		for e, err := range events {
			if err == nil && !e.Synced && s.missed(s.replica, e) {
				continue
			}
			if !yield(e, err) {
				return
			}
		}
	}
}
