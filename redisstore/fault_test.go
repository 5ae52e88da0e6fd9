package redisstore

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// write is a change of a task and what may be seen of it afterwards, however often
// it was sent.
type write struct {
	name  string
	match string // names the command
	setup func(t *testing.T, s *Store, task shim.Task)
	do    func(t *testing.T, s *Store, task shim.Task) error
	check func(t *testing.T, s *Store, task shim.Task)
}

// apply is the do of a change under the lease, or under none.
func apply(lease *shim.Lease, c shim.Change) func(*testing.T, *Store, shim.Task) error {
	return func(t *testing.T, s *Store, task shim.Task) error {
		_, err := s.Apply(t.Context(), task.ID, lease, c)
		return err
	}
}

// asked is the setup of tests with a question.
func asked(t *testing.T, s *Store, task shim.Task) {
	t.Helper()
	must(t, apply(&held, shim.Change{Ask: []shim.Question{{Key: "q"}}})(t, s, task))
}

// answered is the setup of tests with an answer.
func answered(t *testing.T, s *Store, task shim.Task) {
	t.Helper()
	asked(t, s, task)
	must(t, apply(nil, shim.Change{Answer: map[string]json.RawMessage{"q": []byte("1")}})(t, s, task))
}

// reached wants a version: that of a change made once.
func reached(version int64) func(*testing.T, *Store, shim.Task) {
	return func(t *testing.T, s *Store, task shim.Task) {
		t.Helper()
		same(t, version, read(t, s, task.ID, shim.Summary).Version)
	}
}

func nothing(*testing.T, *Store, shim.Task) {}

var writes = []write{
	{"message", "OP-X", nothing, apply(&held, shim.Change{Op: "OP-X", StatusMessage: new(string)}), reached(2)},
	{"end with its tail", "OP-X", nothing, apply(&held, shim.Change{Op: "OP-X", To: shim.Completed, Tail: []shim.Batch{content("[0]")}}),
		func(t *testing.T, s *Store, task shim.Task) {
			reached(2)(t, s, task)
			same(t, []string{"[0]"}, batches(t, s, task.ID))
		}},
	{"cancel", "OP-X", nothing, apply(nil, shim.Change{Op: "OP-X", To: shim.Cancelled}), reached(2)},
	{"cancel, asking who runs it", "hget", nothing, apply(nil, shim.Change{Op: "OP-X", To: shim.Cancelled}), reached(2)},
	{"ask", "QUESTION", nothing, apply(&held, shim.Change{Ask: []shim.Question{{Key: "QUESTION"}}}), reached(2)},
	{"answer", "ANSWER", asked, apply(nil, shim.Change{Answer: map[string]json.RawMessage{"q": []byte("ANSWER")}}), reached(3)},
	{"withdraw", "OP-X", asked, apply(&held, shim.Change{Op: "OP-X", Withdraw: []string{"q"}}), reached(3)},
	{"take", "OP-X", answered, func(t *testing.T, s *Store, task shim.Task) error {
		got, err := s.Apply(t.Context(), task.ID, &held, shim.Change{Op: "OP-X", Take: []string{"q"}})
		if err == nil && !got.Questions[0].Taken {
			t.Error("the answer was lost with the reply")
		}
		return err
	}, reached(4)},
	{"checkpoint", "CHECK", nothing, apply(&held, shim.Change{Checkpoint: json.RawMessage("CHECK")}),
		func(t *testing.T, s *Store, task shim.Task) {
			same(t, "CHECK", string(read(t, s, task.ID, shim.WithRun).Checkpoint))
		}},
	{"append", "PIECE", nothing, apply(&held, shim.Change{Tail: []shim.Batch{content("[PIECE]"), content("[2]")}}), func(t *testing.T, s *Store, task shim.Task) {
		same(t, []string{"[PIECE]", "[2]"}, batches(t, s, task.ID))
	}},
	{"create", ":t:", nothing, createOther, onlyOther},
	{"create, on the list", "}:o", nothing, createOther, onlyOther},
	{"beat", ":replicas", nothing, func(t *testing.T, s *Store, _ shim.Task) error {
		return s.Beat(t.Context(), "other", time.Hour)
	}, nothing},
	{"adopt", "run:HEIR", goodbye, func(t *testing.T, s *Store, task shim.Task) error {
		got, err := s.Adopt(t.Context(), "HEIR", []string{"up"}, 5)
		if err == nil && (len(got) != 1 || got[0].ID != task.ID) {
			t.Errorf("adopted %v", got)
		}
		return err
	}, func(t *testing.T, s *Store, task shim.Task) {
		same(t, shim.Lease{Replica: "HEIR", Adoption: 1}, read(t, s, task.ID, shim.Summary).Lease)
	}},
}

func goodbye(t *testing.T, s *Store, _ shim.Task) {
	t.Helper()
	must(t, s.Beat(t.Context(), held.Replica, time.Hour))
	must(t, s.Beat(t.Context(), held.Replica, 0))
}

// otherList shows the task that createOther makes.
const otherList = "p:bob"

func createOther(t *testing.T, s *Store, task shim.Task) error {
	other := task
	other.ID = task.ID[:35] + "0"
	if task.ID[35] == '0' {
		other.ID = task.ID[:35] + "1"
	}
	other.Op, other.ListKey = "other", otherList
	got, err := s.Create(t.Context(), other, content("[0]"))
	if err == nil {
		same(t, int64(1), got.Version)
		same(t, []string{"[0]"}, batches(t, s, other.ID))
	}
	return err
}

func onlyOther(t *testing.T, s *Store, _ shim.Task) {
	t.Helper()
	got, _, err := s.List(t.Context(), otherList, "", 10)
	must(t, err)
	same(t, 1, len(got))
}

// warm has Redis know all scripts, so that a reply that is lost is not just that it
// does not.
func warm(t *testing.T, s *Store) {
	t.Helper()
	ctx, task := t.Context(), create(t, s, newTask())
	must(t, appendBatches(ctx, s, task.ID, 0))
	goodbye(t, s, task)
	got, err := s.Adopt(ctx, "warm", []string{"up"}, 1)
	must(t, err)
	end(t, s, got[0])
}

// A write whose reply is lost, or that never arrives, is done once in the end:
// whether the store repeats it by itself, or its caller does.
func TestRepeatedWrites(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	warm(t, openTest(t, redis.URL(), testOptions()))
	for _, w := range writes {
		for name, fault := range map[string]redistest.Fault{"reply lost": redistest.DropReply, "cut before": redistest.CutBefore} {
			for by, retry := range map[string]time.Duration{"store": limit, "caller": 1} {
				t.Run(w.name+"/"+name+"/"+by, func(t *testing.T) {
					t.Parallel()
					o := testOptions()
					o.RetryFor = retry
					proxy := redistest.NewProxy(t, redis.Addr)
					direct, faulty := openTest(t, redis.URL(), o), openTest(t, proxy.URL(), o)
					task := create(t, direct, newTask())
					w.setup(t, direct, task)
					proxy.Next(fault, w.match)
					err := w.do(t, faulty, task)
					if retry == 1 && w.name != "take" { // a take is told from a second one by its op
						is(t, err, shim.ErrUnavailable)
					}
					if err != nil {
						err = w.do(t, faulty, task)
					}
					must(t, err)
					same(t, 1, proxy.Hit())
					w.check(t, direct, task)
				})
			}
		}
	}
}

// A command that is held up and executed when its sender has long repeated it, and
// gone on, changes nothing any more.
func TestLateWrites(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o := testOptions()
	o.ReadTimeout, o.RetryFor = 100*time.Millisecond, limit
	proxy := redistest.NewProxy(t, redis.Addr)
	s := openTest(t, proxy.URL(), o)
	task, ended := create(t, s, newTask()), create(t, s, newTask())
	add := func(at int64, checkpoint, piece string) {
		t.Helper()
		_, err := s.Apply(t.Context(), task.ID, &held, shim.Change{At: shim.Position(at), Tail: []shim.Batch{content(piece)}, Checkpoint: json.RawMessage(checkpoint)})
		must(t, err)
	}
	proxy.Next(redistest.Hold, "FIRST")
	add(0, `"FIRST"`, "[0]")
	add(1, `"second"`, "[1]")
	proxy.Next(redistest.Hold, "LATE")
	_, err := s.Apply(t.Context(), ended.ID, nil, shim.Change{Op: "LATE", To: shim.Cancelled})
	must(t, err)
	before, end := read(t, s, task.ID, shim.WithRun), read(t, s, ended.ID, shim.WithRun)
	sent := commands(redis, "evalsha")
	proxy.Release()
	eventually(t, "late commands are executed", func() bool { return commands(redis, "evalsha") >= sent+2 })
	same(t, before, read(t, s, task.ID, shim.WithRun))
	same(t, end, read(t, s, ended.ID, shim.WithRun))
	same(t, `"second"`, string(before.Checkpoint))
	same(t, []string{"[0]", "[1]"}, batches(t, s, task.ID))
}

// Without Redis there is an error in time, and with it everything works again.
func TestOutage(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	proxy := redistest.NewProxy(t, redis.Addr)
	o := testOptions()
	o.RetryFor = 50 * time.Millisecond
	s := openTest(t, proxy.URL(), o)
	task := create(t, s, newTask())
	next := watching(t, s.Watch(t.Context(), task.ID))
	proxy.Refuse(true)
	proxy.Cut()
	for name, op := range operations(task) {
		began := time.Now()
		if err := op(t, s); !errors.Is(err, shim.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("%s took %v", name, d)
		}
	}
	proxy.Refuse(false)
	same(t, shim.Event{Synced: true}, next())
	usable(t, s)
	for name, op := range operations(task) {
		if err := op(t, s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	hears(t, s, next, task.ID, end(t, s, task).Version)
}

// operations are one of each that a task can take.
func operations(task shim.Task) map[string]func(*testing.T, *Store) error {
	return map[string]func(*testing.T, *Store) error{
		"create": func(t *testing.T, s *Store) error { _, err := s.Create(t.Context(), task); return err },
		"get":    func(t *testing.T, s *Store) error { _, err := s.Get(t.Context(), task.ID, shim.Summary); return err },
		"list":   func(t *testing.T, s *Store) error { _, _, err := s.List(t.Context(), task.ListKey, "", 1); return err },
		"apply": func(t *testing.T, s *Store) error {
			_, err := s.Apply(t.Context(), task.ID, nil, shim.Change{Withdraw: []string{"x"}})
			return err
		},
		"batches": func(t *testing.T, s *Store) error {
			_, err := s.Batches(t.Context(), task.ID, 0)
			return err
		},
		"beat":  func(t *testing.T, s *Store) error { return s.Beat(t.Context(), "r", time.Hour) },
		"adopt": func(t *testing.T, s *Store) error { _, err := s.Adopt(t.Context(), "r", nil, 1); return err },
		"ping":  func(t *testing.T, s *Store) error { return s.Ping(t.Context()) },
	}
}

// A Redis that writes to disk has everything again after a crash, and the store
// finds it, its scripts and its subscriptions again.
func TestRestart(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	o := testOptions()
	o.RetryFor = limit
	s := openTest(t, redis.URL(), o)
	task := create(t, s, newTask(), content("[0]"))
	next := watching(t, s.Watch(t.Context(), task.ID))
	redis.Kill()
	redis.Restart()
	same(t, task, read(t, s, task.ID, shim.Summary))
	same(t, []string{"[0]"}, batches(t, s, task.ID))
	same(t, shim.Event{Synced: true}, next())
	same(t, shim.Completed, end(t, s, task).Status)
	same(t, shim.Event{ID: task.ID, Version: 2}, next())
}

// An adoption whose reply is lost stays in doubt for as long as Redis is away. The
// old runner may be back by then: what was not adopted is not taken from it.
func TestAdoptionInDoubt(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	warm(t, openTest(t, redis.URL(), testOptions()))
	for fault, adopted := range map[redistest.Fault]int{redistest.DropReply: 1, redistest.CutBefore: 0} {
		o := testOptions()
		o.RetryFor = 1
		proxy := redistest.NewProxy(t, redis.Addr)
		direct, s := openTest(t, redis.URL(), o), openTest(t, proxy.URL(), o)
		create(t, direct, newTask())
		goodbye(t, direct, shim.Task{})
		proxy.Next(fault, "run:HEIR")
		for range 2 {
			_, err := s.Adopt(t.Context(), "HEIR", []string{"up"}, 5)
			is(t, err, shim.ErrUnavailable)
			proxy.Refuse(true)
		}
		must(t, direct.Beat(t.Context(), held.Replica, time.Hour))
		proxy.Refuse(false)
		got, err := s.Adopt(t.Context(), "HEIR", []string{"up"}, 5)
		must(t, err)
		same(t, adopted, len(got))
	}
}
