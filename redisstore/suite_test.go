package redisstore

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/proc"
	"taskgate/internal/redistest"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
	"taskgate/shim/shimtest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // each script of the store in the process makes a Lua state anew
	flag.Parse()
	unless := map[string]string{
		"rapid.checks":  "20", // the model runs on three kinds of Redis in every go test
		"test.parallel": "6",  // most of these tests wait for a Redis, and not for a processor
	}
	flag.Visit(func(f *flag.Flag) { delete(unless, f.Name) })
	for name, value := range unless {
		_ = flag.Set(name, value)
	}
	// Package proc keeps one goroutine from its first child on.
	if p, err := proc.Start(proc.Command{Name: "true", Path: "/bin/true"}); err == nil {
		<-p.Done()
	}
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(),
		// After many failures go-redis dials once a second, and only then sees that the pool is closed.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// prefixes counts databases: each is a prefix of its own.
var prefixes atomic.Int64

// testOptions are quiet ones with a fresh prefix.
func testOptions() Options {
	return Options{Prefix: fmt.Sprint("t", prefixes.Add(1)), Logger: slog.New(slog.DiscardHandler)}
}

// openTest opens a store for a test.
func openTest(t shimtest.TB, url string, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), url, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// sessionsOf are the sessions of a store, for a replica of its own.
func sessionsOf(s *Store, limit int, idle time.Duration) *Sessions {
	return s.Sessions(node.NewHeart(s, shim.Replica(shim.NewID()), 3*sessionTick, s.log), limit, idle)
}

// over opens databases on one Redis.
func over(url string) shimtest.OpenStore {
	return func(t shimtest.TB) func() shim.Store {
		o := testOptions()
		return func() shim.Store { return openTest(t, url, o) }
	}
}

// inFolders opens embedded databases in folders, several stores over each, and has each folder rewritten every
// few records.
func inFolders(t *testing.T) shimtest.OpenStore {
	root, n := t.TempDir(), atomic.Int64{}
	return func(t shimtest.TB) func() shim.Store {
		o := testOptions()
		o.tick, o.journal.Floor = 10*time.Millisecond, 1<<16
		o = o.withDefaults()
		e, err := startEmbedded(filepath.Join(root, strconv.FormatInt(n.Add(1), 10)), o)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		t.Cleanup(func() { _ = e.stopServer() })
		return func() shim.Store {
			s := e.openStore(o)
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
	}
}

// overview is that of a Store.
func overview(s shim.Store) shim.Overview { return s.(*Store).Overview() }

// everyStore opens databases of each kind.
func everyStore(t *testing.T) map[string]shimtest.OpenStore {
	t.Helper()
	return map[string]shimtest.OpenStore{
		"file": inFolders(t), "redis": over(redistest.Start(t).URL()),
		"cluster": over(redistest.ClusterURL(redistest.Cluster(t, 3))),
	}
}

func TestOverview(t *testing.T) {
	t.Parallel()
	for name, open := range everyStore(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shimtest.Overview(t, open, overview)
		})
	}
}

func TestStoreFile(t *testing.T) {
	t.Parallel()
	shimtest.Store(t, inFolders(t))
}

func TestStoreRedis(t *testing.T) {
	t.Parallel()
	shimtest.Store(t, over(redistest.Start(t).URL()))
}

// freezing opens databases on a Redis that falls silent again and again, for as long as an
// operation takes a few times over, and then does and says all that it was told and asked.
func freezing(t *testing.T) shimtest.OpenStore {
	t.Helper()
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr)
	var freezer sync.WaitGroup
	freezer.Go(func() {
		for on := true; work.Pause(t.Context(), rand.N(20*time.Millisecond)) == nil; on = !on {
			proxy.Freeze(on)
		}
	})
	t.Cleanup(freezer.Wait)
	return over(proxy.URL())
}

// A store keeps its contract there.
func TestStoreRedisThatFreezes(t *testing.T) {
	t.Parallel()
	shimtest.Store(t, freezing(t))
}

// Keys and channels of one task are in one slot, or a cluster refuses the scripts.
func TestStoreCluster(t *testing.T) {
	t.Parallel()
	shimtest.Store(t, over(redistest.ClusterURL(redistest.Cluster(t, 3))))
}

func TestRepeats(t *testing.T) {
	t.Parallel()
	for name, open := range everyStore(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shimtest.Repeats(t, open, func(s shim.Store) shim.Repeats { return NewRepeats(s.(*Store)) })
		})
	}
}

func TestPauses(t *testing.T) {
	t.Parallel()
	stores := everyStore(t)
	stores["cluster"] = over(redistest.ClusterURL(redistest.Cluster(t, 3)))
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shimtest.Pauses(t, open, func(s shim.Store) shim.Pauses { return s.(*Store).Overview() })
		})
	}
}
