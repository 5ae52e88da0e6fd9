package redisstore

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// Connections that are dead, as many as there are pipelines, hold up what has left on
// them and nothing else.
func TestDeadConnections(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	warm(t, openTest(t, server.URL(), testOptions()))
	for name, c := range map[string]struct {
		match string
		of    func(*Store) *pipeliner
		do    func(context.Context, *Store, shim.Task) error
	}{
		"reads": {"hmget", func(s *Store) *pipeliner { return s.reads }, func(ctx context.Context, s *Store, task shim.Task) error {
			_, err := s.Get(ctx, task.ID, shim.Summary)
			return err
		}},
		"writes": {"evalsha", func(s *Store) *pipeliner { return s.writes }, func(ctx context.Context, s *Store, task shim.Task) error {
			return appendBatches(ctx, s, task.ID, 0, content("[1]"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := redistest.NewProxy(t, server.Addr)
			o := testOptions()
			o.ReadTimeout, o.WriteTimeout = 10*limit, 10*limit // only the pipeliner does not wait for them
			s := openTest(t, proxy.URL(), o)
			p, task := c.of(s), create(t, s, newTask())
			results := make(chan error, 100)
			do := func() { results <- c.do(t.Context(), s, task) }
			for n := range p.limit {
				proxy.Next(redistest.Hold, c.match)
				go do()
				eventually(t, "a connection is dead", func() bool { return proxy.Hit() == n+1 })
			}
			for range 10 {
				go do()
			}
			for range 10 {
				must(t, receive(t, results, "a result"))
			}
			proxy.Release()
			for range p.limit {
				must(t, receive(t, results, "a late result"))
			}
			eventually(t, "none is under way", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.underWay == [3]int{}
			})
		})
	}
}

// stuck is a client whose commands wait for a channel.
type stuck struct {
	redis.UniversalClient
	mu             sync.Mutex
	wait           chan struct{}
	underWay, most int
}

func (c *stuck) Process(context.Context, redis.Cmder) error {
	c.mu.Lock()
	wait := c.wait
	c.underWay++
	c.most = max(c.most, c.underWay)
	c.mu.Unlock()
	<-wait
	c.mu.Lock()
	c.underWay--
	c.mu.Unlock()
	return nil
}

func (c *stuck) Pipeline() redis.Pipeliner { return stuckPipeline{client: c} }

// stuckPipeline is a pipeline of one.
type stuckPipeline struct {
	redis.Pipeliner
	client *stuck
}

func (stuckPipeline) Process(context.Context, redis.Cmder) error { return nil }

func (p stuckPipeline) Exec(ctx context.Context) ([]redis.Cmder, error) {
	return nil, p.client.Process(ctx, nil)
}

// Pipelines that are late make room for others, up to a total. When they are back, no
// more are under way at a time than before.
func TestLatePipelinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &stuck{wait: make(chan struct{})}
		p := newPipeliner(c, nil, 2)
		var all sync.WaitGroup
		send := func(n int) {
			for range n {
				all.Go(func() {
					if err := p.Process(t.Context(), redis.NewStringSliceCmd(t.Context(), "get")); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		count := func() int {
			synctest.Wait()
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.underWay
		}
		underWay := func(want int) {
			t.Helper()
			if got := count(); got != want {
				t.Errorf("%d are under way, not %d", got, want)
			}
		}
		send(100)
		underWay(p.limit)
		<-time.After(2*lateRound - time.Millisecond)
		underWay(p.limit)
		<-time.After(2 * time.Millisecond)
		if count() == p.limit {
			t.Error("late pipelines make no room")
		}
		<-time.After(time.Minute)
		underWay(p.total)
		close(c.wait)
		all.Wait()
		synctest.Wait()
		same(t, [3]int{}, p.underWay)

		c.wait, c.most = make(chan struct{}), 0
		send(100)
		underWay(p.limit)
		close(c.wait)
		all.Wait()
		same(t, p.limit, c.most)
		p.awaitPipelines()
	})
}
