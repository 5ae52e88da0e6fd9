package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// Appends of many tasks at once go together, each to its own task and in its order, also
// where Redis forgets the scripts meanwhile.
func TestWritesGather(t *testing.T) {
	t.Parallel()
	const writers, each = 200, 10
	for name, url := range map[string]string{"redis": redistest.Start(t).URL(), "embedded": "embedded"} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, url, testOptions())
			ids := own(t, s, writers)
			g := &gate{open: make(chan struct{})}
			close(g.open)
			s.client.AddHook(g)
			var all sync.WaitGroup
			for i, id := range ids {
				all.Go(func() {
					for n := range int64(each) {
						if i == 0 && name == "redis" {
							_ = s.client.ScriptFlush(t.Context()).Err()
						}
						piece := shim.Batch{Content: json.RawMessage(fmt.Sprintf(`["%d %d"]`, i, n))}
						if err := s.Append(t.Context(), id, held, shim.Position(n), nil, piece); err != nil {
							t.Errorf("%d %d: %v", i, n, err)
						}
					}
				})
			}
			all.Wait()
			for i, id := range ids {
				got, err := s.Batches(t.Context(), id, 0)
				must(t, err)
				if len(got) != each || string(got[each-1]) != fmt.Sprintf(`["%d %d"]`, i, each-1) {
					t.Errorf("%d: %s", i, got)
				}
			}
			if len(g.pipelines) == 0 || slices.Max(g.pipelines) > maxWrites {
				t.Errorf("pipelines of %v", g.pipelines)
			}
		})
	}
}

// A write that is refused is refused alone: those in the same pipeline are not.
func TestWritesFailAlone(t *testing.T) {
	t.Parallel()
	s := openTest(t, redistest.Start(t).URL(), testOptions())
	ids := own(t, s, 100)
	piece := shim.Batch{Content: json.RawMessage(`["a"]`)}
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			at, want := shim.Position(0), error(nil)
			switch i % 3 {
			case 1:
				at, want = 7, shim.ErrPosition
			case 2:
				id, want = newID(t), shim.ErrNotFound
			}
			if err := s.Append(t.Context(), id, held, at, nil, piece); want == nil && err != nil || want != nil && err == nil {
				t.Errorf("%d: %v, want %v", i, err, want)
			}
		})
	}
	all.Wait()
}

// board notes when commands leave, alone or in a pipeline, and does nothing else.
type board struct {
	redis.UniversalClient
	begun time.Time
	mu    sync.Mutex
	left  []time.Duration
}

func (c *board) Process(context.Context, redis.Cmder) error {
	c.depart()
	return nil
}

func (c *board) depart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = append(c.left, time.Since(c.begun))
}

func (c *board) Pipeline() redis.Pipeliner { return boarded{board: c} }

// boarded is a pipeline of a board.
type boarded struct {
	redis.Pipeliner
	board *board
}

func (boarded) Process(context.Context, redis.Cmder) error { return nil }

func (f boarded) Exec(context.Context) ([]redis.Cmder, error) {
	f.board.depart()
	return nil, nil
}

// What comes now and then leaves at once, pace or not.
func TestPaceLeavesFewAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &board{begun: time.Now()}
		g := newPipeliner(c, nil, maxWrites)
		g.pace = writePace
		for n := range 100 {
			must(t, g.Process(t.Context(), redis.NewStringSliceCmd(t.Context(), "get")))
			if want := time.Duration(n) * time.Millisecond; c.left[n] != want {
				t.Fatalf("command %d left after %v, not %v", n, c.left[n], want)
			}
			<-time.After(time.Millisecond)
		}
		g.close()
	})
}

// What comes in a dense crowd waits for company, for no longer than the pace.
func TestPaceGathersACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &board{begun: time.Now()}
		g := newPipeliner(c, nil, maxWrites)
		g.pace = writePace
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				since := time.Now()
				if err := g.Process(t.Context(), redis.NewStringSliceCmd(t.Context(), "get")); err != nil {
					t.Error(err)
				}
				if took := time.Since(since); took > writePace {
					t.Errorf("took %v", took)
				}
			})
			<-time.After(100 * time.Microsecond)
		}
		all.Wait()
		g.close()
		// A hundred milliseconds have room for fifty pipelines, and a few while it was
		// not known yet that this is a crowd.
		if n := len(c.left); n > 100 {
			t.Errorf("%d pipelines", n)
		}
	})
}
