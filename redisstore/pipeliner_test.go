package redisstore

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// gate holds up single reads until it opens, and looks at the pipelines.
type gate struct {
	open chan struct{}
	fail error // what pipelines get instead of replies

	mu        sync.Mutex
	held      int
	pipelines []int // their lengths
}

func (*gate) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "hmget" { // a new connection has commands of its own
			g.mu.Lock()
			g.held++
			g.mu.Unlock()
			<-g.open
		}
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g.mu.Lock()
		g.pipelines = append(g.pipelines, len(cmds))
		g.mu.Unlock()
		if g.fail != nil {
			return g.fail
		}
		return next(ctx, cmds)
	}
}

// answer is what a reader got.
type answer struct {
	id   shim.ID
	task shim.Task
	err  error
}

// crowd is a store whose pipelines are all under way, held up by a gate, and readers
// that wait for them.
type crowd struct {
	*Store
	gate    *gate
	answers chan answer
}

// newCrowd holds up as many reads of a task as there are pipelines, for as long as the
// test wants: none is late.
func newCrowd(t *testing.T, s *Store, held shim.ID) *crowd {
	t.Helper()
	c := &crowd{Store: s, gate: &gate{open: make(chan struct{})}, answers: make(chan answer, 100)}
	s.client.AddHook(c.gate)
	s.reads.round = time.Hour
	for range s.reads.limit {
		c.get(t.Context(), held)
	}
	eventually(t, "all pipelines are under way", func() bool {
		c.gate.mu.Lock()
		defer c.gate.mu.Unlock()
		return c.gate.held == s.reads.limit
	})
	return c
}

// get has a reader read.
func (c *crowd) get(ctx context.Context, id shim.ID) {
	go func() {
		task, err := c.Get(ctx, id, shim.Summary)
		c.answers <- answer{id, task, err}
	}()
}

// wait waits until so many readers wait.
func (c *crowd) wait(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the readers wait", func() bool {
		c.reads.mu.Lock()
		defer c.reads.mu.Unlock()
		return len(c.reads.pending) == n
	})
}

// right takes so many answers and wants each to be the task that was asked for.
func (c *crowd) right(t *testing.T, n int) {
	t.Helper()
	for range n {
		if a := receive(t, c.answers, "an answer"); a.err != nil || a.task.ID != a.id || a.task.Op != string("op of "+a.id) {
			t.Errorf("%s: %+v, %v", a.id, a.task, a.err)
		}
	}
}

// own makes tasks that can be told from each other.
func own(t *testing.T, s *Store, n int) []shim.ID {
	t.Helper()
	ids := make([]shim.ID, n)
	for i := range ids {
		task := newTask()
		task.Op, ids[i] = string("op of "+task.ID), task.ID
		create(t, s, task)
	}
	return ids
}

// Reads that find all pipelines under way leave together, in bounded company, and each
// gets its own answer.
func TestReadsGather(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{"redis": redistest.Start(t).URL(), "embedded": "embedded"} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, url, testOptions())
			ids := own(t, s, 2*maxReads+1)
			c := newCrowd(t, s, ids[0])
			for _, id := range ids {
				c.get(t.Context(), id)
			}
			unknown := shim.NewID()
			missing := make(chan error, 1)
			go func() { _, err := s.Get(t.Context(), unknown, shim.Summary); missing <- err }()
			c.wait(t, len(ids)+1)
			close(c.gate.open)
			c.right(t, len(ids)+s.reads.limit)
			is(t, receive(t, missing, "an answer"), shim.ErrNotFound)
			c.gate.mu.Lock()
			defer c.gate.mu.Unlock()
			if n := c.gate.pipelines; len(n) == 0 || slices.Max(n) != maxReads {
				t.Errorf("pipelines of %v", n)
			}
		})
	}
}

// One after the other nothing is gathered: a read that is alone goes at once.
func TestReadAloneIsNotGathered(t *testing.T) {
	t.Parallel()
	s := openTest(t, redistest.Start(t).URL(), testOptions())
	ids := own(t, s, 3)
	g := &gate{open: make(chan struct{})}
	close(g.open)
	s.client.AddHook(g)
	for _, id := range ids {
		read(t, s, id, shim.Summary)
	}
	same(t, 3, g.held)
	same(t, 0, len(g.pipelines))
}

// A reader that has no more time goes, and what it wanted is not read any more.
func TestReaderLeaves(t *testing.T) {
	t.Parallel()
	s := openTest(t, redistest.Start(t).URL(), testOptions())
	ids := own(t, s, 1)
	c := newCrowd(t, s, ids[0])
	ctx, stop := context.WithCancel(t.Context())
	c.get(ctx, ids[0])
	c.wait(t, 1)
	stop()
	is(t, receive(t, c.answers, "an answer").err, context.Canceled)
	c.wait(t, 0)
	close(c.gate.open)
	c.right(t, s.reads.limit)
	same(t, s.reads.limit, c.gate.held)
	same(t, 0, len(c.gate.pipelines))
}

// A pipeline that is lost is repeated by each of its readers.
func TestPipelineLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, fault := range map[string]redistest.Fault{"reply lost": redistest.DropReply, "cut before": redistest.CutBefore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := redistest.NewProxy(t, server.Addr)
			o := testOptions()
			o.RetryFor = limit
			s := openTest(t, proxy.URL(), o)
			ids := own(t, s, 6)
			c := newCrowd(t, s, ids[0])
			for _, id := range ids[1:] {
				c.get(t.Context(), id)
			}
			c.wait(t, 5)
			proxy.Next(fault, string(ids[3]))
			close(c.gate.open)
			c.right(t, 5+s.reads.limit)
			same(t, 1, proxy.Hit())
		})
	}
}

// What refuses the connection and not a command is told to all readers of a pipeline.
func TestPipelineRefused(t *testing.T) {
	t.Parallel()
	o := testOptions()
	o.RetryFor = 1
	s := openTest(t, redistest.Start(t).URL(), o)
	ids := own(t, s, 3)
	c := newCrowd(t, s, ids[0])
	c.gate.fail = errors.New("no connection")
	for _, id := range ids {
		c.get(t.Context(), id)
	}
	c.wait(t, 3)
	close(c.gate.open)
	failed := 0
	for range 3 + s.reads.limit {
		if a := receive(t, c.answers, "an answer"); errors.Is(a.err, c.gate.fail) {
			failed++
		} else if a.err != nil {
			t.Error(a.err)
		}
	}
	same(t, 3, failed)
}

// A pipeline has the time of the most patient of its callers.
func TestLastDeadline(t *testing.T) {
	t.Parallel()
	at := time.Now()
	some := []*pending{{deadline: at}, {deadline: at.Add(2)}, {deadline: at.Add(1)}}
	same(t, at.Add(2), lastDeadline(some))
	same(t, time.Time{}, lastDeadline(append(some, &pending{})))
}

// Closing the store ends those who wait, and leaves no pipeline under way.
func TestCloseWithReaders(t *testing.T) {
	t.Parallel()
	s := openTest(t, redistest.Start(t).URL(), testOptions())
	ids := own(t, s, 1)
	c := newCrowd(t, s, ids[0])
	for range 3 {
		c.get(t.Context(), ids[0])
	}
	c.wait(t, 3)
	must(t, s.Close())
	close(c.gate.open)
	for range 3 + s.reads.limit {
		is(t, receive(t, c.answers, "an answer").err, shim.ErrUnavailable)
	}
	is(t, func() error { _, err := s.Get(t.Context(), ids[0], shim.Summary); return err }(), shim.ErrUnavailable)
	same(t, [3]int{}, s.reads.underWay)
}
