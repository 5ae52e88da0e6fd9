package redisstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"taskgate/internal/metrics/metricstest"
	"taskgate/internal/redistest"
	"taskgate/shim"

	"github.com/redis/go-redis/v9"
)

// hole is the shards that a store cannot reach, of which a hook decides.
type hole struct {
	err  error
	tags []string
	only *script // if not nil, this script alone fails
	late bool    // they are executed, and their reply is lost
}

// in reports whether a command falls into it.
func (h *hole) in(cmd redis.Cmder) bool {
	if h.err == nil || h.only != nil && !slices.Contains(cmd.Args(), any(h.only.sha)) && !slices.Contains(cmd.Args(), any(h.only.source)) {
		return false
	}
	for _, arg := range cmd.Args() {
		for _, tag := range h.tags {
			if key, ok := arg.(string); ok && strings.Contains(key, ":{"+tag+"}:") {
				return true
			}
		}
	}
	return false
}

func (*hole) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h *hole) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !h.in(cmd) {
			return next(ctx, cmd)
		}
		if h.late {
			_ = next(ctx, cmd)
		}
		cmd.SetErr(h.err)
		return h.err
	}
}

func (h *hole) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var whole []redis.Cmder
		var first error
		for _, cmd := range cmds {
			if h.in(cmd) {
				cmd.SetErr(h.err)
				first = h.err
			} else {
				whole = append(whole, cmd)
			}
		}
		if len(whole) == 0 {
			return first
		}
		return cmp.Or(next(ctx, whole), first)
	}
}

// newHole puts one before a store; it begins as none.
func newHole(s *Store) *hole {
	h := &hole{}
	s.client.AddHook(h)
	return h
}

// heir adopts what it can get.
func heir(t *testing.T, s *Store, n int) ([]shim.ID, error) {
	t.Helper()
	got, err := s.Adopt(t.Context(), "heir", []string{"up"}, n)
	var ids []shim.ID
	for _, task := range got {
		same(t, shim.Lease{Replica: "heir", Adoption: 1}, task.Lease)
		ids = append(ids, task.ID)
	}
	slices.Sort(ids)
	return ids, err
}

// bereaved makes tasks of a replica that is gone then, one in each of these shards.
func bereaved(t *testing.T, s *Store, tags ...string) []shim.ID {
	t.Helper()
	must(t, s.Beat(t.Context(), held.Replica, time.Hour))
	var ids []shim.ID
	for _, tag := range tags {
		ids = append(ids, create(t, s, ofShard(t, s, []string{tag})).ID)
	}
	must(t, s.Beat(t.Context(), held.Replica, 0))
	slices.Sort(ids)
	return ids
}

// Shards that are out of reach keep back their own tasks and no others, and the caller
// learns of it when there are no others. Their replica is not forgotten meanwhile.
func TestAdoptionBesideLostShards(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		far, near := bereaved(t, s, shards[7], shards[200]), bereaved(t, s, shards[8], shards[9], shards[255])
		h := newHole(s)
		h.err, h.tags = io.EOF, []string{shards[7], shards[200], shards[201]}
		got, err := heir(t, s, 2)
		must(t, err)
		same(t, 2, len(got))
		more, err := heir(t, s, 2)
		must(t, err)
		got = append(got, more...)
		slices.Sort(got)
		same(t, near, got)
		for range 3 {
			began := time.Now()
			_, err = heir(t, s, 2)
			is(t, err, shim.ErrUnavailable)
			is(t, err, io.EOF)
			if d := time.Since(began); d > 2*s.opts.RetryFor {
				t.Errorf("gave up after %v", d)
			}
			if !strings.Contains(err.Error(), "tasks in 3 of 256 shards are out of reach") {
				t.Errorf("says %v", err)
			}
			pass(forgetAfter)
		}
		h.err = nil
		got, err = heir(t, s, 10)
		must(t, err)
		same(t, far, got)
		_, err = heir(t, s, 10)
		must(t, err)
	})
}

// A shard that lists its tasks but refuses to have them adopted, because it is full,
// is passed over as well, however many it has.
func TestAdoptionBesideFullShards(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		full := bereaved(t, s, slices.Repeat([]string{shards[3], shards[4]}, 20)...)
		near := bereaved(t, s, shards[5], shards[6])
		h := newHole(s)
		h.err, h.tags, h.only = refusal("OOM command not allowed when used memory > 'maxmemory'."), []string{shards[3], shards[4]}, adoptScript
		got, err := heir(t, s, 50)
		must(t, err)
		same(t, near, got)
		_, err = heir(t, s, 50)
		is(t, err, shim.ErrUnavailable)
		h.err = nil
		got, err = heir(t, s, 50)
		must(t, err)
		same(t, full, got)
	})
}

// refusal is an error that Redis answers with.
type refusal string

func (r refusal) Error() string { return string(r) }

// RedisError implements redis.Error.
func (refusal) RedisError() {}

// An adoption that was made, and whose reply was lost with the shard, holds up no
// other, and is handed out once the shard can be asked.
func TestAdoptionInDoubtInALostShard(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		first := bereaved(t, s, shards[7])
		h := newHole(s)
		h.err, h.tags, h.only, h.late = io.EOF, []string{shards[7]}, adoptScript, true
		_, err := heir(t, s, 10)
		is(t, err, shim.ErrUnavailable)
		h.only, h.late = nil, false
		for i := range 3 {
			near := bereaved(t, s, shards[20+i])
			got, err := heir(t, s, 10)
			must(t, err)
			same(t, near, got)
			_, err = heir(t, s, 10)
			is(t, err, shim.ErrUnavailable)
		}
		h.err = nil
		got, err := heir(t, s, 10)
		must(t, err)
		same(t, first, got)
		got, err = heir(t, s, 10)
		must(t, err)
		same(t, 0, len(got))
	})
}

// Row: a cluster without full coverage that has lost a master. The tasks on the others
// are adopted, and those on it once it is back.
func TestAdoptionWithoutAMaster(t *testing.T) {
	t.Parallel()
	masters := redistest.Cluster(t, 3, "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no",
		"--appendonly", "yes", "--appendfsync", "always")
	tags, others := tagsOf(t, masters[1], 0), tagsOf(t, masters[1], 1)
	o := testOptions()
	for base := o.Prefix; masters[1].Do("cluster", "keyslot", keys{prefix: o.Prefix}.replicas()).(int64) < 16384/3+1; {
		o.Prefix = fmt.Sprint(base, "-", shim.NewID()) // the replicas are not on the master that is lost
	}
	o.RetryFor = 50 * time.Millisecond
	s := openTest(t, redistest.ClusterURL(masters), o)
	usable(t, s)
	far, near := bereaved(t, s, tags[0], tags[1]), bereaved(t, s, others[0], others[1], others[2])

	masters[0].Kill()
	masters[1].WaitCluster("cluster_slots_fail:5461")
	got, err := heir(t, s, 10)
	must(t, err)
	same(t, near, got)
	_, err = heir(t, s, 10)
	is(t, err, shim.ErrUnavailable)

	masters[0].Restart()
	got = nil
	eventually(t, "the others can be adopted", func() bool {
		ids, err := heir(t, s, 10)
		if err != nil && !errors.Is(err, shim.ErrUnavailable) {
			t.Fatal(err)
		}
		got = append(got, ids...)
		return len(got) == len(far)
	})
	slices.Sort(got)
	same(t, far, got)
}

// A record that cannot be read, damaged or of another type, holds up no other one of its shard or
// its list. It is logged once and counted each time.
func TestUnreadableRecords(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"redis": redistest.Start(t).URL(), "embedded": "embedded"} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions()
			var log bytes.Buffer
			var m *metricstest.Reader
			opts.Metrics, m = metricstest.New(t)
			opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
			s := openTest(t, url, opts)
			ids := bereaved(t, s, slices.Repeat([]string{shards[3]}, 5)...)
			damaged, other := ids[1], ids[3]
			must(t, s.client.HSet(t.Context(), s.keys.task(damaged), fieldCreated, "yesterday").Err())
			must(t, s.client.Del(t.Context(), s.keys.task(other)).Err())
			must(t, s.client.Set(t.Context(), s.keys.task(other), "something else", 0).Err())
			whole := []shim.ID{ids[0], ids[2], ids[4]}

			page, _, err := s.List(t.Context(), "p:alice", "", 10)
			must(t, err)
			var listed []shim.ID
			for _, task := range page {
				listed = append(listed, task.ID)
			}
			slices.Sort(listed)
			same(t, whole, listed)
			got, err := heir(t, s, 10)
			must(t, err)
			same(t, whole, got)
			if _, err := s.Get(t.Context(), damaged, shim.Summary); err == nil {
				t.Error("a damaged record was read")
			}
			for _, id := range []shim.ID{damaged, other} {
				same(t, 1, strings.Count(log.String(), string(id)))
			}
			m.Want(map[string]float64{"taskgate.store.skipped_records": 4})
		})
	}
}

// A task that is adopted while operators look for what runs is found once, though it was in the sets of both replicas.
func TestSearchWhileATaskIsAdopted(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		must(t, s.Beat(t.Context(), held.Replica, time.Hour))
		must(t, s.Beat(t.Context(), "heir", time.Hour))
		task := create(t, s, newTask())
		must(t, s.client.ZAdd(t.Context(), s.keys.run(shard(task.ID), "heir"), redis.Z{Member: string(task.ID)}).Err()) // as it was a moment later
		found, _, err := s.Overview().Search(t.Context(), shim.Query{States: shim.OpenStates, Limit: 10})
		must(t, err)
		if len(found) != 1 {
			t.Errorf("found %d times", len(found))
		}
	})
}
