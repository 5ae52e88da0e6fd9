package redisstore

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/patience"
	"taskgate/internal/redistest"
	"taskgate/shim"
)

// hasty are options of a store that soon takes a silent Redis for away. Nothing but the
// patience of who waits ends a wait.
func hasty() Options {
	o := testOptions()
	o.AwayAfter, o.ReadTimeout = 50*time.Millisecond, time.Hour
	return o
}

// asRequest reads a task as a request does, which waits for so long.
func asRequest(t *testing.T, s *Store, id shim.ID, most time.Duration) error {
	t.Helper()
	_, err := s.Get(patience.With(t.Context(), most), id, shim.Summary)
	return err
}

// Requests wait for a Redis that does not say a word until it is known to be away, and then
// not at all. Once it answers again, that is found out although nobody asks it anything.
func TestRequestsOfAFrozenRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := openTest(t, redis.URL(), hasty())
	task := create(t, s, newTask())
	redis.Freeze()
	t.Cleanup(redis.Thaw)
	is(t, asRequest(t, s, task.ID, 100*time.Millisecond), shim.ErrUnavailable)
	const others = 100
	late := make(chan error, others)
	for range others { // they are no requests, and go on waiting
		go func() {
			_, err := s.Get(t.Context(), task.ID, shim.Summary)
			late <- err
		}()
	}
	eventually(t, "some wait for a pipeline", func() bool {
		s.reads.mu.Lock()
		defer s.reads.mu.Unlock()
		return len(s.reads.pending) > 0
	})
	for range 20 {
		is(t, asRequest(t, s, task.ID, time.Hour), errAway)
	}
	redis.Thaw()
	for range others {
		must(t, receive(t, late, "the answer to who has the time"))
	}
	eventually(t, "requests are answered", func() bool { return asRequest(t, s, task.ID, time.Hour) == nil })
}

// A heartbeat that has no answer is enough: then no request has to wait, whatever it asks for.
func TestFrozenRedisIsFoundByHeartbeats(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := openTest(t, redis.URL(), hasty())
	task := create(t, s, newTask())
	redis.Freeze()
	t.Cleanup(redis.Thaw)
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := s.Beat(ctx, "r", time.Hour); err == nil {
		t.Fatal("a frozen Redis took a heartbeat")
	}
	is(t, asRequest(t, s, task.ID, time.Hour), errAway)
	_, err := s.Create(patience.With(t.Context(), time.Hour), newTask())
	is(t, err, errAway)
	is(t, err, shim.ErrUnavailable)
}

// All uses of a request wait together for as long as one may.
func TestUsesOfARequestShareItsPatience(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o := hasty()
	o.AwayAfter = time.Hour // it is never known
	s := openTest(t, redis.URL(), o)
	task := create(t, s, newTask())
	redis.Freeze()
	t.Cleanup(redis.Thaw)
	const most = 500 * time.Millisecond
	ctx, begin := patience.With(t.Context(), most), time.Now()
	for range 100 { // with a patience for each this takes 50 s
		_, err := s.Get(ctx, task.ID, shim.Summary)
		is(t, err, shim.ErrUnavailable)
	}
	if took := time.Since(begin); took > 20*most {
		t.Errorf("a hundred uses took %v", took)
	}
}

// In a cluster only what a frozen node has is away.
func TestFrozenNodeOfACluster(t *testing.T) {
	t.Parallel()
	masters := redistest.Cluster(t, 3)
	s := openTest(t, redistest.ClusterURL(masters), hasty())
	frozen := create(t, s, ofShard(t, s, tagsOf(t, masters[0], 0)))
	other := create(t, s, ofShard(t, s, tagsOf(t, masters[0], 1)))
	masters[0].Freeze()
	t.Cleanup(masters[0].Thaw)
	for range 20 {
		is(t, asRequest(t, s, frozen.ID, 100*time.Millisecond), shim.ErrUnavailable)
	}
	is(t, asRequest(t, s, frozen.ID, time.Hour), errAway)
	must(t, asRequest(t, s, other.ID, time.Minute))
	masters[0].Thaw()
	eventually(t, "the node answers", func() bool { return asRequest(t, s, frozen.ID, time.Hour) == nil })
}

// noteful is the pulse of a Redis that nobody can reach, which is away after a minute.
func noteful(t *testing.T) *pulse {
	t.Helper()
	all := newPulses(time.Minute, slog.New(slog.DiscardHandler))
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1, MaxRetries: -1})
	t.Cleanup(func() {
		all.endProbes()
		_ = client.Close()
	})
	return all.hookClient(client)
}

// A Redis is away if nothing was heard of it for long enough, and not if a single connection
// is dead, or if who asked has left.
func TestPulse(t *testing.T) {
	t.Parallel()
	long := func() time.Time { return time.Now().Add(-2 * time.Minute) }
	answer := redis.Nil // as good as any
	for name, c := range map[string]struct {
		notes func(p *pulse)
		away  bool
	}{
		"a command that failed at once": {func(p *pulse) { p.noteEnd(io.EOF, time.Now()) }, false},
		"one that had no answer":        {func(p *pulse) { p.noteEnd(context.DeadlineExceeded, long()) }, true},
		"one whose caller left":         {func(p *pulse) { p.noteEnd(context.Canceled, long()) }, false},
		"one of a closed store":         {func(p *pulse) { p.noteEnd(redis.ErrClosed, long()) }, false},
		"one beside others": {func(p *pulse) {
			p.noteEnd(nil, time.Now())
			p.noteEnd(io.EOF, long())
		}, false},
		"one that had no answer for long after others": {func(p *pulse) {
			p.begun = long()
			p.heard.Store(int64(time.Second))
			p.noteEnd(context.DeadlineExceeded, long())
		}, true},
		"an error of Redis": {func(p *pulse) {
			p.noteEnd(context.DeadlineExceeded, long())
			p.noteEnd(answer, time.Now())
		}, false},
		"two that failed, an answer between them": {func(p *pulse) {
			p.noteEnd(io.EOF, time.Now())
			p.since = long()
			p.noteEnd(nil, time.Now())
			p.noteEnd(io.EOF, time.Now())
		}, false},
		"two that failed": {func(p *pulse) {
			p.noteEnd(io.EOF, time.Now())
			p.since = long()
			p.noteEnd(io.EOF, time.Now())
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := noteful(t)
			c.notes(p)
			use, done := patience.Use(patience.With(t.Context(), time.Hour))
			defer done(true)
			if err := p.checkAway(use); errors.Is(err, errAway) != c.away {
				t.Errorf("a request: %v", err)
			}
			must(t, p.checkAway(t.Context()))
		})
	}
}

// Behind Sentinel requests go on at the new master, which only a new connection leads to.
func TestRequestsWhileSentinelSwitches(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	replica := redistest.Replica(t, master.Addr)
	sentinel := redistest.Sentinel(t, master, 1)
	o := hasty()
	s := openTest(t, sentinel.SentinelURL(), o)
	task := create(t, s, newTask())
	eventually(t, "the replica has it", func() bool { return len(replica.Keys(o.Prefix+":*:t:*")) == 1 })
	master.Freeze()
	t.Cleanup(master.Thaw)
	is(t, asRequest(t, s, task.ID, 100*time.Millisecond), shim.ErrUnavailable)
	is(t, asRequest(t, s, task.ID, time.Hour), errAway)
	sentinel.WaitMaster(replica)
	eventually(t, "requests are answered", func() bool { return asRequest(t, s, task.ID, time.Hour) == nil })
}
