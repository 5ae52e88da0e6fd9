package redisstore

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxFlight is how many reads go in one pipeline: they wait for each other's
// replies, and all of those, results included, are in memory at once. Small writes,
// maxWrites of them, have replies of a word, and what they write is in memory anyway.
const (
	maxFlight = 16
	maxWrites = 64
)

// writePace is the least time between two flights of writes of a Redis that is not in
// the process: below it most of what ten thousand writes a second cost, here, in Redis
// and in those who hear of them, is to be woken for each. dense is how many commands
// have to come within the pace for it to hold: fewer are not worth a delay.
const (
	writePace = 2 * time.Millisecond
	dense     = 8
)

// gatherer sends commands together that would otherwise wait for a processor, or for a
// connection, one by one: most of what a small one costs, here and in Redis, are its
// system calls. One that finds few others under way goes at once and alone; what comes
// while as many as limit are in flight leaves together, as one pipeline, when one of
// those lands. Only where commands come in crowds, and there is a pace, they wait for
// each other. First come, first served: the
// client's own queue for connections is in no order, and leaves some waiting for long.
//
// Commands that may be repeated only, because each shares the fate of its flight, and of
// one server only: an outage of one master of a cluster must not hold up what goes to
// the others (see newGatherer).
type gatherer struct {
	client redis.UniversalClient
	limit  int // of flights at the same time; 0 gathers nothing
	most   int // commands in one flight
	// pace is the least time between the departures of two flights that are not full,
	// while commands come so fast that a dense crowd of them comes within it; 0 is none.
	pace time.Duration

	mu      sync.Mutex
	flying  int
	left    time.Time     // when the last flight did
	came    time.Time     // when the last command did
	gap     time.Duration // between commands, on average over the last few
	waiting []*passenger
	closed  bool
	flights sync.WaitGroup
}

// passenger is a command that waits for its flight. Once done is closed, err is its
// error, and cmd is the caller's again.
type passenger struct {
	cmd      redis.Cmder
	deadline time.Time // of the caller; zero for none
	err      error
	done     chan struct{}
}

// newGatherer gathers where the processors are what there is too little of: with a
// flight for each of them, and two at least, so that a large result does not hold up
// all others.
func newGatherer(client redis.UniversalClient, most int) *gatherer {
	g := &gatherer{client: client, limit: max(2, runtime.GOMAXPROCS(0)), most: most}
	if _, many := client.(*redis.ClusterClient); many {
		g.limit = 0
	}
	return g
}

// Process runs a command and returns its error, after ctx the error of ctx. The
// command must not be looked at after an error: it may still be in flight.
func (g *gatherer) Process(ctx context.Context, cmd redis.Cmder) error {
	if g.limit == 0 {
		return g.client.Process(ctx, cmd)
	}
	g.mu.Lock()
	g.arrive()
	if g.closed || g.flying < g.limit && g.early() <= 0 {
		g.flying++
		g.depart()
		g.mu.Unlock()
		defer g.land()
		return g.client.Process(ctx, cmd)
	}
	p := &passenger{cmd: cmd, done: make(chan struct{})}
	p.deadline, _ = ctx.Deadline()
	g.waiting = append(g.waiting, p)
	if g.flying < g.limit {
		g.flying++
		g.flights.Go(g.fly)
	}
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

// land ends the flight of a command that went alone. Those who wait take over, in a
// goroutine of their own: that command must not wait for theirs.
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

// early is how much sooner than its pace allows a flight would leave now. g.mu is held.
func (g *gatherer) early() time.Duration {
	if g.pace == 0 || len(g.waiting) >= g.most || g.gap*dense > g.pace {
		return 0
	}
	return g.pace - time.Since(g.left)
}

// arrive notes that a command comes. g.mu is held.
func (g *gatherer) arrive() {
	if g.pace == 0 {
		return
	}
	now := time.Now()
	// A long silence counts as a pace and no more, so that a burst is soon seen as one.
	g.gap += (min(now.Sub(g.came), g.pace) - g.gap) / dense
	g.came = now
}

// depart notes that a flight leaves. g.mu is held.
func (g *gatherer) depart() {
	if g.pace > 0 {
		g.left = time.Now()
	}
}

// fly makes one flight after the other as long as anybody waits.
func (g *gatherer) fly() {
	for {
		g.mu.Lock()
		for early := g.early(); early > 0 && len(g.waiting) > 0 && !g.closed; early = g.early() {
			g.mu.Unlock()
			<-time.After(early)
			g.mu.Lock()
		}
		if len(g.waiting) == 0 {
			g.flying--
			g.mu.Unlock()
			return
		}
		flight := slices.Clone(g.waiting[:min(len(g.waiting), g.most)])
		g.waiting = slices.Delete(g.waiting, 0, len(flight))
		g.depart()
		g.mu.Unlock()
		g.send(flight)
	}
}

// send does the commands of one flight, and gives them as long as the most patient of
// their callers has. Those who have less go when their time is over.
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
	// Where Redis refuses the connection, the client tells the pipeline and not its
	// commands; else the error is that of one of them.
	if slices.ContainsFunc(flight, func(p *passenger) bool { return p.cmd.Err() != nil }) {
		err = nil
	}
	for _, p := range flight {
		p.land(cmp.Or(p.cmd.Err(), err))
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

// land hands the command back to its caller.
func (p *passenger) land(err error) {
	p.err = err
	close(p.done)
}

// close waits for the flights under way, which end because the client is closed.
// What comes from then on fails.
func (g *gatherer) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.flights.Wait()
}
