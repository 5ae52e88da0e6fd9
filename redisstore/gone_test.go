package redisstore

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
	"taskgate/shim/shimtest"
)

// fast is a Redis in a bubble whose clock is ahead by as much as is added.
type fast struct {
	*embedded
	ahead time.Duration
}

// pass lets time pass, on the clock of Redis as well: in steps that are small beside d.
func (f *fast) pass(d time.Duration) {
	step := max(10*time.Millisecond, d/1000)
	for ; d > 0; d -= step {
		pass(min(d, step))
		f.server.SetTime(time.Now().Add(f.ahead))
	}
	synctest.Wait()
}

// jump sets the clock of Redis ahead, as a failover may.
func (f *fast) jump(d time.Duration) {
	f.ahead += d
	f.server.SetTime(time.Now().Add(f.ahead))
}

// newFast starts it, and returns what opens stores over it.
func newFast(t *testing.T) (*fast, func() *Store) {
	t.Helper()
	o := testOptions()
	o.ClockTTL = true
	o = o.withDefaults()
	e, err := startEmbedded("", o)
	must(t, err)
	t.Cleanup(func() { _ = e.stopServer() })
	f := &fast{embedded: e}
	f.jump(0)
	return f, func() *Store {
		s := e.openStore(o)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
}

// When the clock of Redis jumps ahead, nobody is gone until a whole expiry has passed
// by that clock; then who is gone is found.
func TestClockLeaps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		redis, open := newFast(t)
		s := open()
		const ttl = 5 * time.Second
		beat := func(r shim.Replica) { t.Helper(); must(t, s.Beat(t.Context(), r, ttl)) }
		adopt := func() int {
			t.Helper()
			got, err := s.Adopt(t.Context(), "heir", []string{"up"}, 10)
			must(t, err)
			return len(got)
		}
		beat(held.Replica)
		create(t, s, newTask())
		for _, d := range []time.Duration{ttl, time.Minute, 1000 * time.Hour} {
			redis.pass(time.Second)
			beat("heir")
			redis.jump(d) // all beats so far have expired
			beat("heir")
			same(t, 0, adopt())
			redis.pass(ttl / 3)
			same(t, 0, adopt())
			beat(held.Replica) // who lives has beaten again by then
			redis.pass(ttl - ttl/3)
			same(t, 0, adopt())
		}
		redis.jump(ttl) // the runner dies at this moment
		same(t, 0, adopt())
		redis.pass(ttl - 10*time.Millisecond)
		same(t, 0, adopt())
		redis.pass(10 * time.Millisecond)
		same(t, 1, adopt())

		// A clock that goes back, or a little faster, is none that jumps.
		must(t, s.Beat(t.Context(), "heir", 0))
		for range 100 {
			redis.pass(100 * time.Millisecond)
			redis.jump(8 * time.Millisecond)
			beat("other")
		}
		redis.jump(-time.Hour)
		beat("other")
		redis.pass(time.Hour)
		got, err := s.Adopt(t.Context(), "other", []string{"up"}, 10)
		must(t, err)
		same(t, 1, len(got))
	})
}

// An answer that took long is none of a clock that jumps, and hides none for long.
func TestLeapsOfSlowAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l clockJumps
		tell := func(ahead, before, after time.Duration) {
			begin := time.Now()
			pass(before)
			told := fmt.Sprint(time.Now().Add(ahead).UnixMilli())
			pass(after)
			l.observeTime(told, begin)
		}
		for range 10 {
			tell(0, 3*time.Second, 0)
			tell(0, 0, 3*time.Second)
			tell(0, time.Second, 2*time.Second)
			same(t, true, l.isOver(time.Hour))
		}
		tell(time.Second, 0, 2*time.Second)
		same(t, true, l.isOver(time.Hour)) // it may be that only the way back took long
		tell(time.Second, 0, 0)
		same(t, false, l.isOver(time.Second))
		pass(time.Second)
		same(t, true, l.isOver(time.Second))
	})
}

// idle is an upstream that takes an hour. It is sent no notification, and nobody listens to it.
type idle struct{ shim.Upstream }

// Call implements shim.Upstream.
func (idle) Call(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
	if err := s.Checkpoint(json.RawMessage(`"sent"`))(ctx); err != nil {
		return shim.Reply{}, err
	}
	select {
	case <-time.After(time.Hour):
	case <-ctx.Done():
	}
	return shim.Reply{}, context.Cause(ctx)
}

// Resume implements shim.Upstream.
func (u idle) Resume(ctx context.Context, r shim.Request, _ json.RawMessage, s shim.Sink) (shim.Reply, error) {
	return u.Call(ctx, r, s)
}

// Resumable implements shim.Upstream.
func (idle) Resumable(json.RawMessage) bool { return true }

// A failover that is so short that no heartbeat is missed, to a Redis whose clock is
// ahead: whichever replica beats first, it takes nothing from those that live.
func TestLeapOrphansNobody(t *testing.T) {
	t.Parallel()
	phases := time.Duration(shimtest.Rounds(8))
	for n := range phases {
		phase := n * 1800 * time.Millisecond / phases
		t.Run(fmt.Sprint(phase), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				redis, open := newFast(t)
				server := shim.Server{
					Upstream: idle{},
					Policy: func(string, shim.Hints) shim.Policy {
						return shim.Policy{Tasks: shim.Always, TTL: time.Hour, Timeout: 24 * time.Hour}
					},
				}
				gateway := func(name shim.Replica) (*engine.Shim, func()) {
					o := engine.Options{Replica: name, Store: open(), Servers: map[string]shim.Server{"up": server}}
					s, err := engine.New(o)
					must(t, err)
					ctx, stop := context.WithCancel(context.Background())
					var loops sync.WaitGroup
					loops.Go(func() { _ = s.Run(ctx) })
					return s, func() { stop(); loops.Wait() }
				}
				var ids []shim.ID
				reader := open()
				for _, name := range []shim.Replica{"a", "b"} {
					s, stop := gateway(name)
					defer func() { stop(); must(t, s.Close(context.Background())) }()
					out, err := s.Call(t.Context(), shim.Call{
						Upstream: "up", Origin: "ext", Handle: true,
						Request: shim.Request{Method: "tools/call", Name: "slow", Params: json.RawMessage("{}")},
					})
					must(t, err)
					ids = append(ids, out.Task.ID)
					redis.pass(800 * time.Millisecond)
				}
				redis.pass(10*time.Second + phase)
				redis.jump(time.Minute)
				redis.pass(30 * time.Second)
				for _, id := range ids {
					task := read(t, reader, id, shim.Summary)
					same(t, shim.Working, task.Status)
					same(t, int64(0), task.Lease.Adoption)
				}
			})
		})
	}
}
