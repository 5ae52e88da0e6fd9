package chaos

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
)

// snapshots is a Redis that has nothing but snapshots. It is killed, and comes back at once
// as it was some seconds ago: with heartbeats that have expired since, of gateways that
// all live.
type snapshots struct {
	store     *redistest.Server
	heartbeat time.Duration
}

// harm has it go back some times, and gives the gateways time to do something wrong then.
func (s snapshots) harm(ctx context.Context, times int, injected *tally) {
	r := rand.New(rand.NewPCG(*seed, 8))
	for range times {
		s.store.Do("save")
		wait(ctx, s.heartbeat+time.Duration(r.Int64N(int64(s.heartbeat))))
		s.store.Kill()
		s.store.Restart()
		injected.add("redis killed, and back at once from a snapshot")
		wait(ctx, s.heartbeat+time.Duration(r.Int64N(int64(s.heartbeat/2))))
	}
}

// Redis goes back in time again and again. No gateway dies, so none takes anything from
// another, no call is lost or executed beside itself, and each end that a client has seen
// stays: whoever has seen to it writes it again.
func TestSnapshotsGoBack(t *testing.T) {
	programtest.Long(t)
	store, u, j := redistest.Start(t), startUpstream(t), newJudge()
	j.rewinds = true
	s := snapshots{store: store, heartbeat: 2 * time.Second}
	f := newFleet(t, j, u.url, settings{heartbeat: s.heartbeat}, only(store), store.URL(), store.URL(), store.URL())
	c := newClients(t, f, j)
	begin, injected := time.Now(), newTally()
	ctx, stop := context.WithTimeout(t.Context(), runLimit)
	defer stop()
	var over atomic.Bool
	calm := c.underWatch(ctx, func(context.Context) {
		s.harm(ctx, 2+*calls/500, injected)
		over.Store(true)
	})
	n := c.runUntil(ctx, &over)
	calm()
	conclude(t, c, u, n, begin, injected)
}

// runUntil makes calls until it is over, and says how many.
func (c *clients) runUntil(ctx context.Context, over *atomic.Bool) int {
	var next atomic.Int64
	var all sync.WaitGroup
	for range *workers / 2 {
		all.Go(func() {
			for !over.Load() && ctx.Err() == nil {
				c.one(ctx, c.plan(*seed, int(next.Add(1))-1))
			}
		})
	}
	all.Wait()
	return int(next.Load())
}
