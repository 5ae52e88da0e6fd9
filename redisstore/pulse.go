package redisstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/patience"
	"taskgate/internal/work"
)

// probeTime is how long one probe of a Redis that is away may take, and probePause the pause before
// the next one.
const (
	probeTime  = time.Second
	probePause = 100 * time.Millisecond
)

// pulses watch whether each Redis of a store answers. A Redis is away if every command to it has
// failed for a while; an error that Redis itself sends is an answer. While it is away, requests
// fail at once, a probe keeps asking, and all others keep trying as before. In a cluster each node
// has a pulse of its own.
//
// The Limiter of go-redis could refuse commands as well, but it is not told who asks.
type pulses struct {
	after time.Duration // how long every command has to fail
	log   *slog.Logger

	mu     sync.Mutex
	byAddr map[string]*pulse
	ctx    context.Context // of the probes; it ends when the store is closed
	stop   context.CancelFunc
	probes sync.WaitGroup
}

func newPulses(after time.Duration, log *slog.Logger) *pulses {
	p := &pulses{after: after, log: log, byAddr: map[string]*pulse{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// watchClient watches the Redis of a client, or each one of a cluster. It returns the pulse if a
// single one covers all commands. Clients of the same Redis share a pulse.
func (p *pulses) watchClient(client redis.UniversalClient) *pulse {
	switch c := client.(type) {
	case *redis.ClusterClient:
		c.OnNewNode(func(node *redis.Client) { p.hookClient(node) })
	case *redis.Client:
		return p.hookClient(c)
	}
	return nil
}

// hookClient hooks the pulse of a Redis into a client of it.
func (p *pulses) hookClient(client *redis.Client) *pulse {
	addr := client.Options().Addr
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.byAddr[addr]
	if one == nil {
		one = &pulse{all: p, addr: addr, begun: time.Now()}
		p.byAddr[addr] = one
	}
	one.client.Store(client)
	client.AddHook(one)
	return one
}

func (p *pulses) endProbes() {
	p.mu.Lock()
	p.stop()
	p.mu.Unlock()
	p.probes.Wait()
}

// pulse is that of one Redis.
type pulse struct {
	all    *pulses
	addr   string
	client atomic.Pointer[redis.Client] // one of those that use this Redis
	begun  time.Time                    // when the pulse began
	heard  atomic.Int64                 // when the last answer came, since begun; 0 for none
	away   atomic.Bool

	mu    sync.Mutex
	since time.Time // every command has failed since then; zero for none
}

// checkAway refuses the commands of requests while Redis is away.
func (p *pulse) checkAway(ctx context.Context) error {
	if p != nil && p.away.Load() && patience.Waits(ctx) {
		return errAway
	}
	return nil
}

// DialHook implements redis.Hook.
func (p *pulse) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (p *pulse) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := p.checkAway(ctx); err != nil {
			cmd.SetErr(err)
			return err
		}
		begin := time.Now()
		err := next(ctx, cmd)
		p.noteEnd(err, begin)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (p *pulse) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := p.checkAway(ctx); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		begin := time.Now()
		err := next(ctx, cmds)
		p.noteEnd(err, begin)
		return err
	}
}

// noteEnd takes the end of a command that began at begin.
func (p *pulse) noteEnd(err error, begin time.Time) {
	switch {
	case err == nil || isRedis(err):
		p.noteAnswer()
	case errors.Is(err, context.Canceled), errors.Is(err, redis.ErrClosed): // they tell nothing about Redis
	default:
		p.noteFailure(begin)
	}
}

// noteAnswer notes a sign of life.
func (p *pulse) noteAnswer() {
	p.heard.Store(int64(time.Since(p.begun)))
	if p.away.Load() && p.away.CompareAndSwap(true, false) {
		p.all.log.Info("redis answers again", "address", p.addr)
	}
}

// noteFailure notes a command without an answer. Other commands may have been answered after it
// began.
func (p *pulse) noteFailure(begin time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var heard time.Time
	if n := p.heard.Load(); n != 0 {
		heard = p.begun.Add(time.Duration(n))
	}
	if p.since.IsZero() || p.since.Before(heard) {
		if p.since = begin; begin.Before(heard) {
			p.since = heard
		}
	}
	if time.Since(p.since) < p.all.after || !p.away.CompareAndSwap(false, true) {
		return
	}
	p.all.log.Warn("redis does not answer; requests do not wait for it until it does", "address", p.addr)
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.all.ctx.Err() == nil { // else the store is closed
		p.all.probes.Go(p.probeRedis)
	}
}

// probeRedis asks until there is an answer. It uses a new connection, because those of the pool may
// all be dead.
func (p *pulse) probeRedis() {
	o := *p.client.Load().Options()
	o.PoolSize, o.MinIdleConns = 1, 0
	own := redis.NewClient(&o)
	defer own.Close()
	for p.away.Load() {
		attempt, stop := context.WithTimeout(p.all.ctx, probeTime)
		err := own.Ping(attempt).Err()
		stop()
		switch {
		case err == nil || isRedis(err):
			p.noteAnswer()
		case p.isUnused():
			p.away.Store(false) // the node may come back
		case work.Pause(p.all.ctx, probePause) != nil:
			return
		}
	}
}

// isUnused reports whether the client is closed, because this Redis has left its cluster.
func (p *pulse) isUnused() bool {
	over, stop := context.WithCancel(context.Background())
	stop()
	return errors.Is(p.client.Load().Ping(over).Err(), redis.ErrClosed)
}
