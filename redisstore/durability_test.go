package redisstore

import (
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// These tests are the rows of the table in docs/operations.md, "What survives". Each has
// a Redis with the setting of its row break, and looks at what is left.

// patient is a store that repeats while a Redis restarts or fails over.
func patient(t *testing.T, url string) *Store {
	t.Helper()
	o := testOptions()
	o.RetryFor = limit
	return openTest(t, url, o)
}

// story is one of each kind of record.
type story struct{ running, ended shim.Task }

// tell makes one task that runs, with a piece, and one that has ended.
func tell(t *testing.T, s *Store) story {
	t.Helper()
	running := create(t, s, newTask(), content("[0]"))
	return story{running, end(t, s, create(t, s, newTask(), content("[1]")))}
}

// kept wants both as they were, and the first to go on.
func (y story) kept(t *testing.T, s *Store) {
	t.Helper()
	same(t, y.running, read(t, s, y.running.ID, shim.Summary))
	same(t, y.ended, read(t, s, y.ended.ID, shim.Summary))
	same(t, []string{"[0]"}, batches(t, s, y.running.ID))
	same(t, []string{"[1]"}, batches(t, s, y.ended.ID))
	_, err := s.Apply(t.Context(), y.running.ID, &held, shim.Change{Op: "lives", StatusMessage: new("goes on")})
	must(t, err)
}

// gone wants nothing of them, in any place, and that their runner can write the end
// as the shim does then: again from its creation.
func (y story) gone(t *testing.T, s *Store) {
	t.Helper()
	for _, task := range []shim.Task{y.running, y.ended} {
		lost(t, s, task.ID)
		got, _, err := s.List(t.Context(), task.ListKey, "", 10)
		must(t, err)
		for _, listed := range got {
			if listed.ID == task.ID {
				t.Errorf("%s is gone and on a list", task.ID)
			}
		}
	}
	again := y.running
	again.CreatedAt, again.UpdatedAt = time.Time{}, time.Time{}
	create(t, s, again)
	same(t, shim.Completed, end(t, s, again).Status)
}

// lost wants a task to be unknown, whole and for every operation.
func lost(t *testing.T, s *Store, id shim.ID) {
	t.Helper()
	_, err := s.Get(t.Context(), id, shim.WithRun)
	is(t, err, shim.ErrNotFound)
	_, err = s.Batches(t.Context(), id, 0)
	is(t, err, shim.ErrNotFound)
	_, err = s.Apply(t.Context(), id, &held, shim.Change{Op: "late", To: shim.Completed})
	is(t, err, shim.ErrNotFound)
	is(t, appendBatches(t.Context(), s, id, 0, content("[9]")), shim.ErrNotFound)
	left, err := s.client.Exists(t.Context(), s.keys.record(id, held.Replica)[:2]...).Result()
	must(t, err)
	same(t, int64(0), left)
}

// Row: no persistence. Every end of Redis forgets all.
func TestNoPersistence(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "no")
	s := patient(t, redis.URL())
	for _, end := range []func(){redis.Kill, redis.Stop} {
		told := tell(t, s)
		end()
		redis.Restart()
		told.gone(t, s)
	}
}

// Row: snapshots. A kill goes back to the last one; who is asked to stop makes one.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "no", "--save", "3600 1000000")
	s := patient(t, redis.URL())
	before := tell(t, s)
	redis.Do("save")
	_, err := s.Apply(t.Context(), before.running.ID, &held, shim.Change{Op: "x", To: shim.Completed})
	must(t, err)
	after := tell(t, s)
	redis.Kill()
	redis.Restart()
	before.kept(t, s) // the end of the first is undone
	after.gone(t, s)

	last := tell(t, s)
	redis.Stop()
	redis.Restart()
	last.kept(t, s)
}

// Rows: appendfsync. What was acknowledged is with the kernel, or on its disk, when
// the process dies; only a machine that dies tells them apart.
func TestAppendOnly(t *testing.T) {
	t.Parallel()
	for _, fsync := range []string{"no", "everysec", "always"} {
		t.Run(fsync, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", fsync)
			s := patient(t, redis.URL())
			for _, end := range []func(){redis.Kill, redis.Stop} {
				told := tell(t, s)
				if fsync == "everysec" { // a write waits for an fsync that takes long, two seconds at most
					redis.WaitInfo("persistence", "aof_buffer_length:0")
				}
				end()
				redis.Restart()
				told.kept(t, s)
			}
		})
	}
}

// pair is a master, and a replica of it over a network that can be cut.
type pair struct {
	master, replica *redistest.Server
	link            *redistest.Proxy
}

func newPair(t *testing.T) pair {
	t.Helper()
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	link := redistest.NewProxy(t, master.Addr)
	return pair{master, redistest.Replica(t, link.Addr), link}
}

// part cuts the replica off.
func (p pair) part() {
	p.link.Refuse(true)
	p.link.Cut()
}

// Row: a replica that nobody waits for. A failover loses what it has not had: a task
// is unknown, the end of another is undone and can be written again, and nothing is
// half there.
func TestReplicaNotWaitedFor(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	o := testOptions()
	s := openTest(t, p.master.URL(), o)
	before := tell(t, s)
	eventually(t, "the replica has them", func() bool {
		return p.replica.Do("hget", s.keys.task(before.ended.ID), "status") == string(shim.Completed)
	})
	p.part()
	_, err := s.Apply(t.Context(), before.running.ID, &held, shim.Change{Op: "x", To: shim.Completed})
	must(t, err)
	after := tell(t, s)

	p.master.Kill()
	p.replica.Promote()
	s = openTest(t, p.replica.URL(), o)
	before.kept(t, s)
	after.gone(t, s)
}

// Row: wait_replicas. What was acknowledged is at the replica; what was not is an
// error, although it may be there.
func TestReplicaWaitedFor(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	o := testOptions()
	o.WaitReplicas, o.WaitTimeout = 1, 20*time.Second
	s := openTest(t, p.master.URL(), o)
	told := tell(t, s)
	p.part()
	o.WaitTimeout = 50 * time.Millisecond
	alone := openTest(t, p.master.URL(), o)
	late := newTask()
	_, err := alone.Create(t.Context(), late)
	is(t, err, ErrNotReplicated)
	is(t, err, shim.ErrUnavailable)
	_, err = alone.Apply(t.Context(), told.running.ID, &held, shim.Change{Op: "x", To: shim.Completed})
	is(t, err, ErrNotReplicated)

	p.master.Kill()
	p.replica.Promote()
	if _, err := Open(t.Context(), "embedded", o); err == nil {
		t.Error("the embedded store has no replicas to wait for")
	}
	o.WaitReplicas = 0
	s = openTest(t, p.replica.URL(), o)
	told.kept(t, s)
	lost(t, s, late.ID)
}

// Rows: eviction. Of a Redis that evicts among all keys, tasks that run disappear;
// among keys that expire, those that have ended do, before their time. Either way the
// gateway only sees that they are unknown.
func TestEviction(t *testing.T) {
	t.Parallel()
	for policy, evictsRunning := range map[string]bool{"allkeys-lru": true, "volatile-ttl": false, "noeviction": false} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t, "--maxmemory-policy", policy)
			s := patient(t, redis.URL())
			told := tell(t, s)
			redis.Do("config", "set", "maxmemory", "1")
			// A command that may take memory has Redis evict what it can first.
			_, err := s.Create(t.Context(), newTask())
			is(t, err, shim.ErrUnavailable)
			redis.Do("config", "set", "maxmemory", "0")
			switch {
			case evictsRunning:
				told.gone(t, s)
			case policy == "noeviction":
				told.kept(t, s)
			default:
				lost(t, s, told.ended.ID)
				same(t, told.running, read(t, s, told.running.ID, shim.Summary))
				end(t, s, told.running)
			}
		})
	}
}

// Row: embedded. All is lost with the process, or with the store here.
func TestEmbeddedForgets(t *testing.T) {
	t.Parallel()
	o := testOptions()
	s := openTest(t, "embedded", o)
	told := tell(t, s)
	must(t, s.Close())
	told.gone(t, openTest(t, "embedded", o))
}
