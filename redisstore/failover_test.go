package redisstore

import (
	"errors"
	"slices"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// synced pulls events until the subscription is whole again.
func synced(next func() shim.Event) {
	for !next().Synced {
	}
}

// cancels has a store cancel a task, and waits until a watcher knows of it.
func cancels(t *testing.T, s *Store, task shim.Task, next func() shim.Event) {
	t.Helper()
	got, err := s.Apply(t.Context(), task.ID, nil, shim.Change{Op: "ends", To: shim.Cancelled})
	must(t, err)
	hears(t, s, next, task.ID, got.Version)
}

// Row: Sentinel. When the master dies, the store goes on at the replica that takes
// its place, and so do those who wait; the old master comes back as a replica and gets
// nothing written.
func TestSentinel(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	replica := redistest.Replica(t, master.Addr)
	sentinel := redistest.Sentinel(t, master, 1)
	o := testOptions()
	o.RetryFor, o.ProbeInterval = limit, 200*time.Millisecond
	o.WaitReplicas, o.WaitTimeout = 1, 20*time.Second
	s := openTest(t, sentinel.SentinelURL(), o)
	must(t, s.Ping(t.Context()))
	told := tell(t, s)
	watched := create(t, s, newTask())
	next := watching(t, s.Watch(t.Context(), watched.ID))
	inbox := watching(t, s.Inbox(t.Context(), held.Replica))

	master.Kill()
	o.WaitReplicas = 0 // none is left
	alone := openTest(t, sentinel.SentinelURL(), o)
	must(t, alone.Ping(t.Context()))
	sentinel.WaitMaster(replica)
	synced(next)
	synced(inbox)
	told.kept(t, alone)
	cancels(t, alone, watched, next)
	hears(t, alone, inbox, watched.ID, watched.Version+1)

	master.Restart() // it believes that it is the master, until the sentinel sees it
	master.WaitInfo("replication", "role:slave", "master_link_status:up")
	later := tell(t, s) // waits for a replica, so that one is
	later.kept(t, s)
	same(t, string(shim.Completed), master.Do("hget", s.keys.task(later.ended.ID), "status"))
}

// A master that hangs, is replaced, and comes to itself: it is nobody's master any
// more, and what it is told then is not lost, because nobody is told that it was done.
func TestSentinelOfAFrozenMaster(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	replica := redistest.Replica(t, master.Addr)
	sentinel := redistest.Sentinel(t, master, 1)
	o := testOptions()
	o.RetryFor, o.ReadTimeout, o.ProbeInterval = limit, 300*time.Millisecond, 200*time.Millisecond
	s := openTest(t, sentinel.SentinelURL(), o)
	task := create(t, s, newTask())
	next := watching(t, s.Watch(t.Context(), task.ID))
	eventually(t, "the replica has it", func() bool { return len(replica.Keys(o.Prefix+":*:t:*")) == 1 })

	master.Freeze()
	created := create(t, s, newTask()) // goes on once there is another master
	sentinel.WaitMaster(replica)
	synced(next)
	master.Thaw()
	master.WaitInfo("replication", "role:slave", "master_link_status:up")
	for range 20 { // over whatever connection the pool has
		read(t, s, created.ID, shim.Summary)
		create(t, s, newTask())
	}
	same(t, 22, len(replica.Keys(o.Prefix+":*:t:*")))
	cancels(t, s, task, next)
}

// ofShard makes a task whose slot one of the masters has.
func ofShard(t *testing.T, s *Store, tags []string) shim.Task {
	t.Helper()
	task := newTask()
	for !slices.Contains(tags, shard(task.ID)) {
		task.ID = shim.NewID()
	}
	return task
}

// tagsOf are the hash tags whose slots a master of three has.
func tagsOf(t *testing.T, m *redistest.Server, master int) []string {
	t.Helper()
	var tags []string
	for _, tag := range shards {
		slot := m.Do("cluster", "keyslot", "{"+tag+"}").(int64)
		if slot >= int64(master*16384/3) && slot < int64((master+1)*16384/3) {
			tags = append(tags, tag)
		}
	}
	return tags
}

// Row: a cluster whose lost master has a replica. Its slots come back with what was
// waited for, and with them who listens.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	// Else the second replica may leave for a master that has none.
	settings := []string{"--cluster-node-timeout", "2000", "--cluster-allow-replica-migration", "no"}
	masters := redistest.Cluster(t, 3, settings...)
	one := redistest.ClusterReplica(t, masters, 3, 0, settings...)
	redistest.ClusterReplica(t, append(slices.Clone(masters), one), 3, 0, settings...)
	tags := tagsOf(t, masters[1], 0)
	o := testOptions()
	o.RetryFor, o.ProbeInterval = limit, 200*time.Millisecond
	o.WaitReplicas, o.WaitTimeout = 1, 20*time.Second
	s := openTest(t, redistest.ClusterURL(masters), o)
	task := create(t, s, ofShard(t, s, tags), content("[0]"))
	next := watching(t, s.Watch(t.Context(), task.ID))

	masters[0].Kill()
	other := create(t, s, ofShard(t, s, tags)) // waits for the other replica, too
	masters[1].WaitCluster("cluster_state:ok")
	same(t, task, read(t, s, task.ID, shim.Summary))
	same(t, []string{"[0]"}, batches(t, s, task.ID))
	cancels(t, openTest(t, redistest.ClusterURL(masters), o), task, next)
	same(t, shim.Completed, end(t, s, other).Status)
	must(t, s.Ping(t.Context()))
	_, _, err := s.List(t.Context(), task.ListKey, "", 10)
	must(t, err)
}

// Rows: a cluster that has lost a master for good. With full coverage nothing works;
// without it only what is on the other masters.
func TestClusterWithoutAMaster(t *testing.T) {
	t.Parallel()
	for _, coverage := range []string{"yes", "no"} {
		t.Run("cluster-require-full-coverage "+coverage, func(t *testing.T) {
			t.Parallel()
			masters := redistest.Cluster(t, 3, "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", coverage)
			tags, others := tagsOf(t, masters[0], 0), tagsOf(t, masters[0], 1)
			o := testOptions()
			o.RetryFor = 50 * time.Millisecond
			s := openTest(t, redistest.ClusterURL(masters), o)
			unlisted := func(tags []string) shim.Task {
				task := ofShard(t, s, tags)
				task.ListKey = ""
				return task
			}
			gone, there := create(t, s, unlisted(tags)), create(t, s, unlisted(others))
			listed := ofShard(t, s, tags)
			must(t, s.listTask(t.Context(), listed.ListKey, listed))
			masters[0].Kill()
			masters[1].WaitCluster(map[string]string{"yes": "cluster_state:fail", "no": "cluster_slots_fail:5461"}[coverage])
			_, err := s.Get(t.Context(), gone.ID, shim.Summary)
			is(t, err, shim.ErrUnavailable)
			_, err = s.Create(t.Context(), unlisted(tags))
			is(t, err, shim.ErrUnavailable)
			is(t, s.Ping(t.Context()), shim.ErrUnavailable)
			_, _, err = s.List(t.Context(), listed.ListKey, "", 10)
			is(t, err, shim.ErrUnavailable) // it would not be whole
			if coverage == "yes" {
				_, err = s.Get(t.Context(), there.ID, shim.Summary)
				is(t, err, shim.ErrUnavailable)
				return
			}
			same(t, there, read(t, s, there.ID, shim.Summary))
			next := watching(t, s.Watch(t.Context(), there.ID))
			cancels(t, s, there, next)
			_, err = s.Get(t.Context(), gone.ID, shim.Summary)
			if errors.Is(err, shim.ErrNotFound) {
				t.Error("what cannot be reached is not unknown")
			}

			masters[0].Restart() // it has no data on disk
			eventually(t, "the slots are back", func() bool {
				_, err := s.Get(t.Context(), gone.ID, shim.Summary)
				return errors.Is(err, shim.ErrNotFound)
			})
		})
	}
}
