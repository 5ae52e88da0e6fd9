package chaos

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"taskgate/internal/proc"
	"taskgate/internal/redistest"
)

// world is what a run happens in.
type world struct {
	fleet   *fleet
	store   *redistest.Server
	proxies []*redistest.Proxy // between each gateway and the store
	redis   sync.Mutex         // held by whoever has ended the store
}

// fault is one thing that goes wrong.
type fault struct {
	name  string
	often int // how often, in relation to the others
	// node says that it befalls one gateway, which nothing else befalls meanwhile.
	node bool
	do   func(ctx context.Context, w *world, i int, lasts time.Duration)
}

// most is how long a fault lasts at most: several times the heartbeat.
const most = 4 * time.Second

// faults are all that go wrong.
var faults = []fault{
	{"gateway killed", 6, true, func(ctx context.Context, w *world, i int, lasts time.Duration) {
		w.fleet.nodes[i].kill()
		wait(ctx, lasts/2)
		w.restart(i)
	}},
	{"all gateways killed", 1, false, func(ctx context.Context, w *world, _ int, lasts time.Duration) {
		for _, n := range w.fleet.nodes {
			n.busy.Lock()
			defer n.busy.Unlock()
			n.kill()
		}
		wait(ctx, lasts/2)
		for i := range w.fleet.nodes {
			w.restart(i)
		}
	}},
	{"gateway stopped in good order", 2, true, func(ctx context.Context, w *world, i int, lasts time.Duration) {
		w.fleet.nodes[i].stop()
		wait(ctx, lasts/4)
		w.restart(i)
	}},
	{"all gateways restarted one after the other", 1, false, func(_ context.Context, w *world, _ int, _ time.Duration) {
		for i, n := range w.fleet.nodes {
			n.busy.Lock()
			n.stop()
			w.restart(i)
			n.busy.Unlock()
		}
	}},
	{"gateway frozen", 3, true, func(ctx context.Context, w *world, i int, lasts time.Duration) {
		p := w.fleet.nodes[i].current()
		_ = p.Signal(proc.Freeze) // if it has ended, the judge hears of that elsewhere
		wait(ctx, lasts)
		_ = p.Signal(proc.Thaw)
	}},
	{"gateway cut off from redis", 4, true, func(ctx context.Context, w *world, i int, lasts time.Duration) {
		w.proxies[i].Refuse(true)
		w.proxies[i].Cut()
		wait(ctx, lasts)
		w.proxies[i].Refuse(false)
	}},
	{"connections to redis cut", 4, false, func(_ context.Context, w *world, i int, _ time.Duration) {
		w.proxies[i].Cut()
	}},
	{"reply of redis lost", 5, false, func(_ context.Context, w *world, i int, _ time.Duration) {
		w.proxies[i].Next(redistest.DropReply, "evalsha")
	}},
	{"command to redis lost", 3, false, func(_ context.Context, w *world, i int, _ time.Duration) {
		w.proxies[i].Next(redistest.CutBefore, "evalsha")
	}},
	{"command to redis late", 4, false, func(ctx context.Context, w *world, i int, lasts time.Duration) {
		w.proxies[i].Next(redistest.Hold, "evalsha")
		wait(ctx, lasts)
		w.proxies[i].Release()
	}},
	{"messages of redis lost", 3, false, func(_ context.Context, w *world, i int, _ time.Duration) {
		w.proxies[i].Deafen()
	}},
	{"redis frozen", 2, false, func(ctx context.Context, w *world, _ int, lasts time.Duration) {
		w.redis.Lock()
		defer w.redis.Unlock()
		w.store.Freeze()
		wait(ctx, lasts)
		w.store.Thaw()
	}},
	{"redis killed", 3, false, func(ctx context.Context, w *world, _ int, lasts time.Duration) {
		w.redis.Lock()
		defer w.redis.Unlock()
		w.store.Kill()
		wait(ctx, lasts*3/4)
		w.store.Restart()
	}},
	{"redis restarted at once", 2, false, func(_ context.Context, w *world, _ int, _ time.Duration) {
		w.redis.Lock()
		defer w.redis.Unlock()
		w.store.Kill()
		w.store.Restart()
	}},
}

// restart runs a gateway again.
func (w *world) restart(i int) {
	if err := w.fleet.nodes[i].start(); err != nil {
		w.fleet.judge.blame("gateway %d does not start: %v", i, err)
	}
}

// event is a fault with its place and time.
type event struct {
	fault fault
	pause time.Duration // since the one before
	node  int
	lasts time.Duration
}

// schedule derives the next event.
func schedule(r *rand.Rand, nodes int) event {
	var bag []fault
	for _, f := range faults {
		for range f.often {
			bag = append(bag, f)
		}
	}
	return event{
		fault: pick(r, bag), pause: 100*time.Millisecond + time.Duration(r.Int64N(int64(700*time.Millisecond))),
		node: r.IntN(nodes), lasts: time.Duration(r.Float64() * float64(most)),
	}
}

// harm lets things go wrong until ctx ends, and then sees to it that everything is
// well again.
func (w *world) harm(ctx context.Context, injected *tally) {
	r := rand.New(rand.NewPCG(*seed, 0))
	var all sync.WaitGroup
	for {
		e := schedule(r, len(w.fleet.nodes))
		if !wait(ctx, time.Duration(float64(e.pause)*w.fleet.slowness())) {
			break
		}
		all.Go(func() {
			if busy := &w.fleet.nodes[e.node].busy; e.fault.node {
				if !busy.TryLock() {
					injected.add("(left out, because the gateway had enough to bear)")
					return
				}
				defer busy.Unlock()
			}
			injected.add(e.fault.name)
			e.fault.do(ctx, w, e.node, e.lasts)
		})
	}
	all.Wait()
	for _, p := range w.proxies {
		p.Refuse(false)
		p.Release()
	}
}
