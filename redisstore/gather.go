package redisstore

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxFlight is how many reads go in one pipeline: they wait for each other's
// replies, and all of those, results included, are in memory at once.
const maxFlight = 16

// gatherer sends reads together that would otherwise wait for a processor one by one:
// most of what a small read costs, here and in Redis, are its system calls. A read
// that finds few others under way goes at once and alone, so nothing is ever delayed
// to be gathered; what comes while as many as limit are in flight leaves together, as
// one pipeline, when one of those lands.
//
// Reads only, and of one server only: an outage of one master of a cluster must not
// hold up reads from the others (see newGatherer).
type gatherer struct {
	client redis.UniversalClient
	limit  int // of flights at the same time; 0 gathers nothing

	mu      sync.Mutex
	flying  int
	waiting []*passenger
	closed  bool
	flights sync.WaitGroup
}

// passenger is a read that waits for its flight. Once done is closed, err is its
// error, and cmd is the reader's again.
type passenger struct {
	cmd      *redis.StringSliceCmd
	deadline time.Time // of the reader; zero for none
	err      error
	done     chan struct{}
}

// newGatherer gathers where the processors are what there is too little of: with a
// flight for each of them, and two at least, so that a large result does not hold up
// all others.
func newGatherer(client redis.UniversalClient) *gatherer {
	g := &gatherer{client: client, limit: max(2, runtime.GOMAXPROCS(0))}
	if _, many := client.(*redis.ClusterClient); many {
		g.limit = 0
	}
	return g
}

// process runs a command and returns its error, after ctx the error of ctx. The
// command must not be looked at after an error: it may still be in flight.
func (g *gatherer) process(ctx context.Context, cmd *redis.StringSliceCmd) error {
	if g.limit == 0 {
		return g.client.Process(ctx, cmd)
	}
	g.mu.Lock()
	if g.flying < g.limit || g.closed {
		g.flying++
		g.mu.Unlock()
		defer g.land()
		return g.client.Process(ctx, cmd)
	}
	p := &passenger{cmd: cmd, done: make(chan struct{})}
	p.deadline, _ = ctx.Deadline()
	g.waiting = append(g.waiting, p)
	g.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		g.leave(p)
		return ctx.Err()
	}
}

// leave takes back a passenger whose flight has not begun.
func (g *gatherer) leave(p *passenger) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.waiting, p); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
	}
}

// land ends the flight of a read that went alone. Those who wait take over, in a
// goroutine of their own: that read must not wait for theirs.
func (g *gatherer) land() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case len(g.waiting) == 0:
		g.flying--
	case g.closed: // no goroutine begins any more
		g.flying--
		for _, p := range g.waiting {
			p.land(redis.ErrClosed)
		}
		g.waiting = nil
	default:
		g.flights.Go(g.fly)
	}
}

// fly makes one flight after the other as long as anybody waits.
func (g *gatherer) fly() {
	for {
		g.mu.Lock()
		if len(g.waiting) == 0 {
			g.flying--
			g.mu.Unlock()
			return
		}
		flight := slices.Clone(g.waiting[:min(len(g.waiting), maxFlight)])
		g.waiting = slices.Delete(g.waiting, 0, len(flight))
		g.mu.Unlock()
		g.send(flight)
	}
}

// send does the reads of one flight, and gives them as long as the most patient of
// their readers has. Those who have less go when their time is over.
func (g *gatherer) send(flight []*passenger) {
	ctx, stop := context.Background(), func() {}
	if last := patience(flight); !last.IsZero() {
		ctx, stop = context.WithDeadline(ctx, last)
	}
	defer stop()
	if len(flight) == 1 {
		flight[0].land(g.client.Process(ctx, flight[0].cmd))
		return
	}
	pipe := g.client.Pipeline()
	for _, p := range flight {
		_ = pipe.Process(ctx, p.cmd) // only queues it
	}
	_, err := pipe.Exec(ctx)
	for _, p := range flight {
		if p.cmd.Err() == nil && len(p.cmd.Val()) == 0 {
			// Where Redis refuses the connection, the client tells the pipeline
			// and not its commands. No reply is without values.
			p.land(err)
			continue
		}
		p.land(p.cmd.Err())
	}
}

// patience is the last deadline of the passengers, or zero where one has none.
func patience(flight []*passenger) (last time.Time) {
	for _, p := range flight {
		if p.deadline.IsZero() {
			return time.Time{}
		}
		if p.deadline.After(last) {
			last = p.deadline
		}
	}
	return last
}

// land hands the command back to its reader.
func (p *passenger) land(err error) {
	p.err = err
	close(p.done)
}

// close waits for the flights under way, which end because the client is closed.
// What is read from then on fails.
func (g *gatherer) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.flights.Wait()
}
