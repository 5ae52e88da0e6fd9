package redisstore

import (
	"context"
	"net"
	"time"

	"github.com/alicebob/miniredis/v2"

	"taskgate/internal/memconn"
)

// embedded is a miniredis in this process, reached over pipes in memory.
//
// miniredis counts time only when told to, and then takes the same from every
// key, also from one that was written just before. So a ticker tells it, never of
// more than slack at once, and slack is added to each expiry: a key never ends
// early, and a few ticks late. (Its ClockTTL is exact, and looks at every key on
// every access.)
type embedded struct {
	server *miniredis.Miniredis
	slack  time.Duration
	stop   context.CancelFunc
	done   chan struct{}
}

// startEmbedded starts it.
func startEmbedded(opts Options) *embedded {
	ctx, stop := context.WithCancel(context.Background())
	e := &embedded{server: miniredis.NewMiniRedis(), slack: 2 * opts.tick, stop: stop, done: make(chan struct{})}
	if opts.ClockTTL {
		e.slack = 0
		e.server.ClockTTL(true)
		close(e.done)
		return e
	}
	go e.run(ctx, opts.tick)
	return e
}

// run counts time until ctx ends.
func (e *embedded) run(ctx context.Context, tick time.Duration) {
	defer close(e.done)
	t := time.NewTicker(tick)
	defer t.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			now := time.Now()
			e.server.FastForward(min(now.Sub(last), e.slack))
			last = now
		}
	}
}

// dial is a redis.Options.Dialer.
func (e *embedded) dial(context.Context, string, string) (net.Conn, error) {
	c, err := e.server.Dial()
	if err != nil {
		return nil, err
	}
	return memconn.New(c), nil
}

// close ends it, and with it everything stored.
func (e *embedded) close() {
	e.stop()
	<-e.done
	e.server.Close()
}
