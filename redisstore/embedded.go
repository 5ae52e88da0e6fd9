package redisstore

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
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
	return newPipe(c), nil
}

// close ends it, and with it everything stored.
func (e *embedded) close() {
	e.stop()
	<-e.done
	e.server.Close()
}

// pipe gives a net.Pipe what a socket has and it lacks: a buffer for writing.
// Without one, a server that answers the first command of a pipeline waits for a
// client that is still writing the second, for ever.
type pipe struct {
	net.Conn
	wake  chan struct{} // there is something to send
	ended chan struct{}
	end   func()

	mu  sync.Mutex
	out []byte
}

func newPipe(c net.Conn) *pipe {
	p := &pipe{Conn: c, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	p.end = sync.OnceFunc(func() { close(p.ended) })
	go p.send()
	return p
}

// Write keeps b to be sent. A caller waits for the answer before it writes more,
// so what is kept is no more than one caller's commands.
func (p *pipe) Write(b []byte) (int, error) {
	select {
	case <-p.ended:
		return 0, net.ErrClosed
	default:
	}
	p.mu.Lock()
	p.out = append(p.out, b...)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return len(b), nil
}

// send sends what is kept until the pipe is closed.
func (p *pipe) send() {
	for {
		select {
		case <-p.ended:
			return
		case <-p.wake:
		}
		p.mu.Lock()
		out := p.out
		p.out = nil
		p.mu.Unlock()
		if _, err := p.Conn.Write(out); err != nil {
			_ = p.Close()
		}
	}
}

// Close ends both directions.
func (p *pipe) Close() error {
	p.end()
	return p.Conn.Close()
}
