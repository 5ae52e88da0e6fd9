package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// manyTasks are how many tasks BenchmarkSearch looks through, and onePage is how many of them it lists.
const (
	manyTasks = 100_000
	onePage   = 100
)

// BenchmarkSearch lists a page of many tasks over a real Redis, and says how long the median and the 99th percentile of
// the pages take, of each kind of list.
func BenchmarkSearch(b *testing.B) {
	s := openTest(b, redistest.Start(b).URL(), testOptions())
	fill(b, s)
	view := s.Overview()
	alice := "alice"
	for name, q := range map[string]shim.Query{
		"newest": {}, "oldest": {Oldest: true},
		"running":     {States: shim.OpenStates},
		"of_a_caller": {Owner: &alice, Lists: []string{"up/p:alice"}},
	} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for q.Limit, q.Cursor = onePage, ""; b.Loop(); {
				begun := time.Now()
				page, next, err := view.Search(b.Context(), q)
				took = append(took, time.Since(begun))
				if err != nil || len(page) != onePage {
					b.Fatalf("%d tasks: %v", len(page), err)
				}
				if q.Cursor = next; len(took)%9 == 0 { // also pages further on, but for the last one
					q.Cursor = ""
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// fill makes the tasks: one in a hundred still runs, and one in twenty is that of a caller.
func fill(b *testing.B, s *Store) {
	b.Helper()
	must(b, s.Beat(b.Context(), "r", time.Hour))
	var all sync.WaitGroup
	const workers = 16
	for w := range workers {
		all.Go(func() {
			for i := w; i < manyTasks; i += workers {
				if err := makeTask(b.Context(), s, i, true); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// makeTask makes a task, with a timeline or without, and ends it but for one in a hundred.
func makeTask(ctx context.Context, s *Store, i int, timeline bool) error {
	var made, ended []shim.Moment
	if timeline {
		made, ended = []shim.Moment{{Kind: shim.KindMade}}, []shim.Moment{{Kind: shim.KindEnded}}
	}
	id := shim.NewID()
	t := shim.Task{
		ID: id, Op: "op", Upstream: "up", Visible: true, Status: shim.Working, StatusMessage: fmt.Sprint("step ", i), TTL: time.Hour,
		Retain: time.Hour, Lease: shim.Lease{Replica: "r"}, Method: "tools/call", Tool: "slow", Timeline: made,
	}
	if i%20 == 0 {
		t.Owner, t.ListKey = "alice", "up/p:alice"
	}
	created, err := s.Create(ctx, t)
	if err != nil || i%100 == 0 {
		return err
	}
	_, err = s.Apply(ctx, id, &created.Lease, shim.Change{
		Op: "end", To: shim.Completed, Outcome: &shim.Outcome{Result: []byte(`{"content":[]}`)}, Moments: ended,
	})
	return err
}

// BenchmarkMade makes tasks and ends them, over a real Redis, and says how long Redis works on a script, by its own clock:
// with what is kept for operators, and without the index and the timelines.
func BenchmarkMade(b *testing.B) {
	const index = "redis.call('ZADD', KEYS[4], int(at), id)\n"
	if !strings.Contains(createScript.source, index) {
		b.Fatal("the index is written elsewhere")
	}
	for name, listed := range map[string]bool{"listed": true, "unlisted": false} {
		b.Run(name, func(b *testing.B) {
			s := openTest(b, redistest.Start(b).URL(), testOptions())
			if !listed {
				listing := createScript
				createScript = scriptOf(strings.Replace(listing.source, index, "", 1))
				defer func() { createScript = listing }()
			}
			for i := 1; b.Loop(); i++ {
				must(b, makeTask(b.Context(), s, 20*i+1, listed))
			}
			b.ReportMetric(scriptTime(b, s), "redis-us/script")
		})
	}
}

// scriptTime is how long Redis has worked on a script on average, in microseconds.
func scriptTime(b *testing.B, s *Store) (us float64) {
	b.Helper()
	stats, err := s.client.Info(b.Context(), "commandstats").Result()
	must(b, err)
	for line := range strings.Lines(stats) {
		if _, rest, ok := strings.Cut(line, "cmdstat_evalsha:"); ok {
			_, per, _ := strings.Cut(rest, "usec_per_call=")
			per, _, _ = strings.Cut(per, ",")
			us, _ = strconv.ParseFloat(per, 64)
		}
	}
	return us
}
