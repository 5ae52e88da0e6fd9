package redisstore

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// channels lists what is subscribed with a prefix, without the probes.
func channels(redis *redistest.Server, prefix string) []string {
	var out []string
	for _, c := range redis.Do("pubsub", "channels", prefix+":*").([]any) {
		if !strings.Contains(c.(string), ":probe:") {
			out = append(out, c.(string))
		}
	}
	return out
}

// subscribers is how many connections a server has that subscribe.
func subscribers(redis *redistest.Server) int {
	return strings.Count(redis.Do("client", "list", "type", "pubsub").(string), "\n")
}

// However much is watched, there is one connection for it, no goroutine but the
// caller's, and Redis sends only what is waited for (design.md 0.22).
// It counts what the process has, so it is alone.
func TestOneConnection(t *testing.T) {
	redis := redistest.Start(t)
	o := testOptions()
	s := openTest(t, redis.URL(), o)
	const n = 3000
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var synced, all sync.WaitGroup
	synced.Add(n)
	before := runtime.NumGoroutine()
	for range n {
		id := shim.NewID()
		all.Go(func() {
			ready := sync.OnceFunc(synced.Done)
			defer ready()
			for e, err := range s.Watch(ctx, id) {
				if err != nil || !e.Synced {
					t.Errorf("%v %v", e, err)
				}
				ready()
			}
		})
	}
	synced.Wait()
	must(t, ctx.Err())
	if more := runtime.NumGoroutine() - before - n; more > 50 {
		t.Errorf("%d goroutines besides the %d callers", more, n)
	}
	same(t, 1, subscribers(redis))
	same(t, n, len(channels(redis, o.Prefix)))
	if c := commands(redis, "subscribe"); c > n/2 {
		t.Errorf("%d commands to subscribe %d channels", c, n)
	}
	cancel()
	all.Wait()
	eventually(t, "all is unsubscribed", func() bool { return len(channels(redis, o.Prefix)) == 0 })
	eventually(t, "all is forgotten", func() bool {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		return len(s.hub.topics)+len(s.hub.dirty) == 0
	})
}

// A subscription that is cut is made anew, and everybody is told to read again;
// what happened meanwhile is found by reading.
func TestResubscribe(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	proxy := redistest.NewProxy(t, redis.Addr)
	o := testOptions()
	direct, s := openTest(t, redis.URL(), o), openTest(t, proxy.URL(), o)
	one, two := create(t, direct, newTask()), create(t, direct, newTask())
	first := watching(t, s.Watch(t.Context(), one.ID))
	both := watching(t, s.Watch(t.Context(), one.ID, two.ID))
	inbox := watching(t, s.Inbox(t.Context(), held.Replica))
	for range 3 {
		proxy.Cut()
		for _, next := range []func() shim.Event{first, both, inbox} {
			same(t, shim.Event{Synced: true}, next())
		}
	}
	end(t, direct, one)
	for _, next := range []func() shim.Event{first, both} {
		same(t, shim.Event{ID: one.ID, Version: 2}, next())
	}
	_, err := direct.Apply(t.Context(), two.ID, nil, shim.Change{Op: "x", To: shim.Cancelled})
	must(t, err)
	same(t, shim.Event{ID: two.ID, Version: 2}, both())
	same(t, shim.Event{ID: two.ID, Version: 2}, inbox())
}

// A connection on which nothing arrives any more is noticed, though it is up.
func TestDeafSubscription(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	proxy := redistest.NewProxy(t, redis.Addr)
	o := testOptions()
	o.ProbeInterval = 200 * time.Millisecond
	s := openTest(t, proxy.URL(), o)
	task := create(t, s, newTask())
	next := watching(t, s.Watch(t.Context(), task.ID))
	proxy.Deafen()
	end(t, s, task)
	same(t, shim.Event{Synced: true}, next())
}

// One that hears is left alone.
func TestHearingSubscription(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o := testOptions()
	o.ProbeInterval = 20 * time.Millisecond
	s := openTest(t, redis.URL(), o)
	s.hub.patience = limit // it may hear late
	watching(t, s.Watch(t.Context(), shim.NewID()))
	made := commands(redis, "subscribe")
	probes := commands(redis, "publish")
	eventually(t, "several probes", func() bool { return commands(redis, "publish") > probes+5 })
	same(t, made, commands(redis, "subscribe"))
}

// A confirmation that never comes is not waited for for ever, and no Synced is
// given before it.
func TestUnconfirmedSubscription(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	proxy := redistest.NewProxy(t, redis.Addr)
	o := testOptions()
	o.ProbeInterval = time.Hour // a late probe would make a new connection as well
	s := openTest(t, proxy.URL(), o)
	s.hub.timeout = 200 * time.Millisecond
	task := create(t, s, newTask())
	watching(t, s.Watch(t.Context(), task.ID)) // the connection is up
	proxy.Deafen()
	began := time.Now()
	other := newTask()
	next := watching(t, s.Watch(t.Context(), other.ID))
	if d := time.Since(began); d < s.hub.timeout {
		t.Errorf("synced after %v by a Redis that does not answer", d)
	}
	create(t, s, other)
	same(t, shim.Event{ID: other.ID, Version: 1}, next())
}

// A watch that begins while Redis is away begins when it is back.
func TestWatchBeforeRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	proxy := redistest.NewProxy(t, redis.Addr)
	proxy.Refuse(true)
	s := openTest(t, proxy.URL(), testOptions())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for e, err := range s.Watch(ctx, shim.NewID()) {
		t.Errorf("%v %v without a Redis", e, err)
	}
	time.AfterFunc(50*time.Millisecond, func() { proxy.Refuse(false) })
	watching(t, s.Watch(t.Context(), shim.NewID()))
}

// When the store is closed, watches end for good.
func TestClose(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"embedded", redistest.Start(t).URL()} {
		s := openTest(t, url, testOptions())
		task := create(t, s, newTask())
		var ready, all sync.WaitGroup
		ready.Add(20)
		for range 20 {
			all.Go(func() {
				var last error
				once := sync.OnceFunc(ready.Done)
				defer once()
				for e, err := range s.Watch(t.Context(), task.ID) {
					if last = err; e.Synced {
						once()
					}
				}
				if last == nil || last.Error() != errClosed.Error() {
					t.Errorf("ends with %v", last)
				}
			})
		}
		finish(t, &ready, "all watch")
		must(t, s.Close())
		finish(t, &all, "all watches end")
		for e, err := range s.Watch(t.Context(), task.ID) {
			is(t, err, errClosed)
			same(t, shim.Event{}, e)
		}
		for name, op := range operations(task) {
			if err := op(t, s); err == nil {
				t.Errorf("%s works on a closed store", name)
			}
		}
		_ = s.Close() // twice is harmless
	}
}

// counted counts what is read from a connection.
type counted struct {
	net.Conn
	n *atomic.Int64
}

// Read implements net.Conn.
func (c counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// A poll is one command, and moves no outcome.
func TestCostOfGet(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o := testOptions()
	moved := &atomic.Int64{}
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return counted{c, moved}, err
	}
	s := openTest(t, redis.URL(), o)
	task := create(t, s, newTask())
	big := []byte(strings.Repeat("x", 1<<20))
	_, err := s.Apply(t.Context(), task.ID, &held, shim.Change{
		Op: "x", To: shim.Completed, Outcome: &shim.Outcome{Result: big}, Checkpoint: big, Call: big,
	})
	must(t, err)
	for part, most := range map[shim.Part]int64{shim.Summary: 1000, shim.WithOutcome: 1<<20 + 1000, shim.WithRun: 2<<20 + 1000} {
		before := commands(redis, "hmget")
		moved.Store(0)
		read(t, s, task.ID, part)
		if n := moved.Load(); n > most {
			t.Errorf("part %d moved %d bytes", part, n)
		}
		same(t, before+1, commands(redis, "hmget"))
	}
}
