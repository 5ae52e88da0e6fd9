package redisstore

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
)

// bubble runs a test over an embedded store on the clock of a synctest bubble.
func bubble(t *testing.T, f func(t *testing.T, s *Store)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := testOptions()
		o.ClockTTL = true
		s := openTest(t, "embedded", o)
		f(t, s)
	})
}

// pass lets time pass.
func pass(d time.Duration) { <-time.After(d) }

// present reports whether a task is there.
func present(t *testing.T, s *Store, id shim.ID) bool {
	t.Helper()
	_, err := s.Get(t.Context(), id, shim.Summary)
	if err != nil && !errors.Is(err, shim.ErrNotFound) {
		t.Fatal(err)
	}
	return err == nil
}

// Every expiry comes when it is due, not a moment before, and none where there is
// a promise to keep.
func TestExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		hidden := newTask()
		hidden.Visible, hidden.TTL = false, time.Minute
		both := []shim.Task{create(t, s, newTask()), create(t, s, hidden, content("[0]"))}
		pass(1000 * time.Hour) // their ttls are an hour and a minute
		same(t, []string{"[0]"}, batches(t, s, hidden.ID))
		for _, task := range both {
			same(t, true, present(t, s, task.ID))
			ended := end(t, s, task)
			same(t, ended.UpdatedAt.Sub(ended.CreatedAt)+time.Hour, ended.TTL)
		}
		pass(time.Hour - time.Millisecond)
		for _, task := range both {
			same(t, true, present(t, s, task.ID))
		}
		same(t, []string{"[0]"}, batches(t, s, hidden.ID))
		pass(2 * time.Millisecond)
		for _, task := range both {
			same(t, false, present(t, s, task.ID))
		}
		_, err := s.Batches(t.Context(), hidden.ID, 0)
		is(t, err, shim.ErrNotFound)
	})
}

// A replica is alive until its heartbeat expires, and its tasks are anybody's ten
// expiries after its last beat.
func TestHeartbeat(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		const ttl = 5 * time.Second
		adopt := func(upstreams ...string) int {
			got, err := s.Adopt(t.Context(), "heir", upstreams, 10)
			must(t, err)
			return len(got)
		}
		must(t, s.Beat(t.Context(), held.Replica, ttl))
		create(t, s, newTask())
		for range 10 {
			pass(ttl - time.Millisecond)
			same(t, 0, adopt("up"))
			must(t, s.Beat(t.Context(), held.Replica, ttl))
		}
		pass(ttl)
		same(t, 1, adopt("up"))

		other := newTask()
		must(t, s.Beat(t.Context(), held.Replica, ttl))
		last := time.Now()
		create(t, s, other)
		for time.Since(last) < 10*ttl {
			same(t, 0, adopt("elsewhere"))
			pass(ttl / 2)
		}
		same(t, 1, adopt("elsewhere"))
		// Nothing is left of who is gone and has no tasks.
		same(t, 0, adopt())
		fields, err := s.client.HKeys(t.Context(), s.keys.replicas()).Result()
		must(t, err)
		same(t, []string{}, fields)
		keys, err := s.client.Keys(t.Context(), s.keys.prefix+":{*:run:"+string(held.Replica)).Result()
		must(t, err)
		same(t, []string{}, keys)
	})
}

// A replica that is found gone, without tasks, is looked through again, and is not forgotten
// before whatever it began is over.
func TestGoneReplicaIsRemembered(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		const ttl = time.Second
		known := func() bool {
			ok, err := s.client.HExists(t.Context(), s.keys.replicas(), string(held.Replica)).Result()
			must(t, err)
			return ok
		}
		adopt := func() int {
			got, err := s.Adopt(t.Context(), "heir", []string{"up"}, 10)
			must(t, err)
			return len(got)
		}
		must(t, s.Beat(t.Context(), held.Replica, ttl))
		pass(2 * ttl)
		same(t, 0, adopt())
		same(t, true, known())

		must(t, s.Beat(t.Context(), held.Replica, ttl))
		create(t, s, newTask())
		pass(2 * ttl)
		same(t, 1, adopt())

		// A task that it creates late is found, also with the last look.
		same(t, 0, adopt())
		create(t, s, newTask())
		same(t, 1, adopt())
		create(t, s, newTask())
		pass(forgetAfter)
		same(t, 1, adopt())
		same(t, 0, adopt())
		same(t, false, known())
	})
}

// A list lives at least as long as each task on it, whatever moves its end.
func TestListOutlivesTasks(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		task := newTask()
		task.TTL, task.Retain = time.Second, time.Second
		task = create(t, s, task)
		key := s.keys.list(task.ListKey)
		lives := func(until time.Time) {
			t.Helper()
			left, err := s.client.PTTL(t.Context(), key).Result()
			must(t, err)
			if left < time.Until(until) {
				t.Errorf("the list lives %v, its task %v", left, time.Until(until))
			}
		}
		lives(task.ExpiresAt())
		for _, c := range []shim.Change{{TTL: 100 * time.Hour}, {Retain: 1000 * time.Hour}, {TTL: 101 * time.Hour}} {
			got, err := s.Apply(t.Context(), task.ID, &held, c)
			must(t, err)
			lives(got.ExpiresAt().Add(got.Retain))
		}
		pass(500 * time.Hour) // its runner was away
		lives(end(t, s, task).ExpiresAt())
		pass(1000*time.Hour - time.Millisecond)
		got, _, err := s.List(t.Context(), task.ListKey, "", 5)
		must(t, err)
		same(t, 1, len(got))
	})
}

// Entries whose task is gone leave the list by reading it, or else as it grows.
func TestPruning(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		add := func(n int) {
			t.Helper()
			for range n {
				task := newTask()
				task.Retain = time.Second
				end(t, s, create(t, s, task))
			}
		}
		length := func() int64 {
			n, err := s.client.ZCard(t.Context(), s.keys.list("p:alice")).Result()
			must(t, err)
			return n
		}
		list := func() { // it shows nothing
			t.Helper()
			got, _, err := s.List(t.Context(), "p:alice", "", 5)
			must(t, err)
			same(t, 0, len(got))
		}
		add(30)
		pass(youth - 2*time.Second)
		list()
		same(t, int64(30), length()) // their tasks might still be about to be stored
		pass(4 * time.Second)
		list()
		same(t, int64(0), length())
		for range 3 { // nobody reads
			add(sweepEvery)
			pass(2 * youth)
		}
		if n := length(); n > 2*sweepEvery {
			t.Errorf("%d entries and no tasks", n)
		}
	})
}

// A page has as many tasks as fit into its bytes, and leads to the next one.
func TestPagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	s := openTest(t, "embedded", testOptions())
	all := map[shim.ID]bool{}
	for range 12 {
		draft := newTask()
		draft.ListKey, draft.Visible = "list", true
		task, err := s.Create(t.Context(), draft)
		must(t, err)
		must(t, s.client.HSet(t.Context(), s.keys.task(task.ID), fieldProgress, "1\n"+`{"message":"`+strings.Repeat("x", pageBytes/4)+`"}`).Err())
		all[task.ID] = true
	}
	for name, read := range map[string]func(cursor string) ([]shim.Task, string, error){
		"search": func(cursor string) ([]shim.Task, string, error) {
			return s.Overview().Search(t.Context(), shim.Query{Limit: 100, Cursor: cursor})
		},
		"list": func(cursor string) ([]shim.Task, string, error) { return s.List(t.Context(), "list", cursor, 100) },
	} {
		found := map[shim.ID]bool{}
		for cursor := ""; ; {
			page, next, err := read(cursor)
			must(t, err)
			if len(page) > 4 {
				t.Errorf("%s: a page of %d", name, len(page))
			}
			for _, task := range page {
				found[task.ID] = true
			}
			if cursor = next; next == "" {
				break
			}
		}
		same(t, all, found)
	}
}

// What is listed but was never stored, because its creator died in between, or is
// claimed by an entry that lies, is not shown.
func TestListIsAHint(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		unstored := newTask()
		must(t, s.listTask(t.Context(), unstored.ListKey, unstored))
		foreign := newTask()
		foreign.ListKey = "p:bob"
		create(t, s, foreign)
		foreign.ListKey = "p:alice"
		must(t, s.listTask(t.Context(), foreign.ListKey, foreign))
		mine := create(t, s, newTask())
		got, cursor, err := s.List(t.Context(), "p:alice", "", 1)
		must(t, err)
		same(t, []shim.Task{mine}, got)
		same(t, "", cursor)
	})
}

// Pages of tasks that were listed at the very same time.
func TestListOfTwins(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		for range 100 { // the bubble's clock stands still
			create(t, s, newTask())
		}
		seen := map[shim.ID]bool{}
		cursor := ""
		for {
			page, next, err := s.List(t.Context(), "p:alice", cursor, 7)
			must(t, err)
			for _, k := range page {
				seen[k.ID] = true
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		same(t, 100, len(seen))
	})
}

// Many commands in one write, larger than any buffer on their way.
func TestPipe(t *testing.T) {
	t.Parallel()
	s := openTest(t, "embedded", testOptions())
	p := s.client.Pipeline()
	value := strings.Repeat("v", 100_000)
	for range 100 {
		p.Set(t.Context(), "key", value, 0)
		p.Get(t.Context(), "key")
	}
	_, err := p.Exec(t.Context())
	must(t, err)
}

// Memory is given back of keys that are gone.
func TestEmbeddedForgetsKeys(t *testing.T) {
	t.Parallel()
	o := testOptions()
	o.tick = time.Millisecond
	s := openTest(t, "embedded", o)
	for range 100 {
		must(t, s.client.Set(t.Context(), string(shim.NewID()), "", time.Millisecond).Err())
	}
	eventually(t, "all have expired", func() bool { return len(s.embedded.server.Keys()) == 0 })
	s.embedded.forgetVersions()
	versions := keyVersions(s.embedded.server)
	if versions == nil {
		t.Fatal("this version of miniredis keeps its versions elsewhere: does it forget them?")
	}
	s.embedded.server.Lock()
	defer s.embedded.server.Unlock()
	same(t, 0, len(*versions))
}

// The list of unknown outcomes does not grow for as long as there are more of them: what has expired leaves it.
func TestUnknownOutcomesThatHaveExpired(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		for range 50 {
			task := newTask()
			task.TTL, task.Retain = time.Minute, time.Minute
			task = create(t, s, task)
			_, err := s.Apply(t.Context(), task.ID, &task.Lease, shim.Change{Op: "end", To: shim.Failed, Outcome: &shim.Outcome{Error: json.RawMessage(`{}`), Unknown: true}})
			must(t, err)
			pass(time.Hour)
			must(t, s.Overview().Sweep(t.Context()))
		}
		n, err := s.client.ZCard(t.Context(), s.keys.unknown()).Result()
		must(t, err)
		if n > 1 {
			t.Errorf("%d entries, and no task is left", n)
		}
	})
}
