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

// maxReads is how many reads go in one pipeline: they wait for each other's replies, and all
// replies, results included, are in memory at once. A pipeline has up to maxWrites small writes:
// their replies are one word each, and the data that they write is in memory anyway.
const (
	maxReads  = 16
	maxWrites = 64
)

// lateRound is how often the age of pipelines is checked while commands are pending. A pipeline
// that has seen two rounds end is late: after 50 to 100 ms.
const lateRound = 50 * time.Millisecond

// pipeliner sends commands together that would otherwise wait for a processor, or for a connection,
// one by one: system calls are most of the cost of a small command, here and in Redis. A command
// that finds few others under way goes at once and alone. Up to limit pipelines are under way at
// the same time. Later commands are pending; they leave together, as one pipeline, when an earlier
// pipeline is back. Commands leave in the order in which they came; the client's own queue for
// connections has random order, so some would wait for long.
//
// A pipeline that is late, because its connection is dead or its replies are large, is left out of
// the limit: the pending commands leave on another connection.
//
// Only commands that may be repeated go this way, because each shares the fate of its pipeline. All
// of them go to one server, because an outage of one master of a cluster must not hold up the
// commands for the others (see newPipeliner).
type pipeliner struct {
	client redis.UniversalClient
	pulse  *pulse // of the one server; nil for a cluster
	limit  int    // of pipelines under way that are not late; 0 sends each command alone
	total  int    // of pipelines under way, late ones included
	most   int    // commands in one pipeline
	round  time.Duration

	mu sync.Mutex
	// underWay counts pipelines by the rounds that they have seen end: zero, one, more. The last
	// are late. turn counts the rounds.
	underWay [3]int
	turn     int
	timing   bool // a round is in progress
	pending  []*pending
	closed   bool
	senders  sync.WaitGroup
}

// pending is a command that waits for its pipeline. Once done is closed, err is its error, and cmd
// is the caller's again.
type pending struct {
	cmd      redis.Cmder
	deadline time.Time // of the caller; zero for none
	err      error
	done     chan struct{}
}

// newPipeliner allows one pipeline for each processor, and two at least, so that a large result
// does not hold up all others. The reads and the writes of a store together leave some connections
// of the pool to others, late pipelines included. For a cluster it sends each command alone.
func newPipeliner(client redis.UniversalClient, one *pulse, most int) *pipeliner {
	p := &pipeliner{client: client, pulse: one, limit: max(2, runtime.GOMAXPROCS(0)), most: most, round: lateRound}
	p.total = 2 * p.limit
	switch c := client.(type) {
	case *redis.ClusterClient:
		p.limit = 0
	case *redis.Client:
		p.total = max(p.limit, c.Options().PoolSize*2/5)
	}
	return p
}

// Process runs a command and returns its error, or the error of ctx once ctx has ended. After an
// error the caller must leave the command alone: it may still be under way.
func (p *pipeliner) Process(ctx context.Context, cmd redis.Cmder) error {
	if p.limit == 0 {
		return p.client.Process(ctx, cmd)
	}
	if err := p.pulse.checkAway(ctx); err != nil { // it fails before it waits in the queue
		return err
	}
	p.mu.Lock()
	if p.closed || p.hasRoom() {
		turn := p.enterTurn()
		p.mu.Unlock()
		defer p.endAlone(turn)
		return p.client.Process(ctx, cmd)
	}
	c := &pending{cmd: cmd, done: make(chan struct{})}
	c.deadline, _ = ctx.Deadline()
	p.pending = append(p.pending, c)
	p.sendPending()
	p.mu.Unlock()
	// The pipeline wakes it. endRound sends pending commands each lateRound (50 ms).
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		p.removePending(c)
		return ctx.Err()
	}
}

// removePending takes back a command whose pipeline has yet to leave.
func (p *pipeliner) removePending(c *pending) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending = slices.DeleteFunc(p.pending, func(o *pending) bool { return o == c })
}

// hasRoom reports whether one more pipeline may leave. p.mu is held.
func (p *pipeliner) hasRoom() bool {
	n := p.underWay[0] + p.underWay[1]
	return n < p.limit && n+p.underWay[2] < p.total
}

// sendPending has pending commands leave if there is room, and begins a round, at whose end there
// may be more room. p.mu is held.
func (p *pipeliner) sendPending() {
	if p.hasRoom() {
		turn := p.enterTurn()
		p.senders.Go(func() { p.sendPipelines(turn) })
	}
	if !p.timing {
		p.timing = true
		time.AfterFunc(p.round, p.endRound)
	}
}

// endRound makes the pipelines under way a round older. Rounds follow each other while commands are
// pending.
func (p *pipeliner) endRound() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timing = false
	p.turn++
	p.underWay = [3]int{0, p.underWay[0], p.underWay[1] + p.underWay[2]}
	if len(p.pending) > 0 && !p.closed {
		p.sendPending()
	}
}

// enterTurn counts a pipeline, and returns its turn. p.mu is held.
func (p *pipeliner) enterTurn() (turn int) {
	p.underWay[0]++
	return p.turn
}

// leaveTurn takes a pipeline of a turn out of the count. p.mu is held.
func (p *pipeliner) leaveTurn(turn int) { p.underWay[min(p.turn-turn, 2)]-- }

// endAlone ends a command that went alone. Pending commands leave in a goroutine of their own, so
// that the caller of this one returns at once.
func (p *pipeliner) endAlone(turn int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveTurn(turn)
	switch {
	case len(p.pending) == 0:
	case p.closed: // no goroutine begins from now on
		for _, c := range p.pending {
			c.finish(redis.ErrClosed)
		}
		p.pending = nil
	default:
		p.sendPending()
	}
}

// sendPipelines sends pipelines while commands are pending and there is room. The caller has
// counted it in a turn.
func (p *pipeliner) sendPipelines(turn int) {
	for {
		p.mu.Lock()
		p.leaveTurn(turn)
		if len(p.pending) == 0 || !p.hasRoom() {
			p.mu.Unlock()
			return
		}
		commands := slices.Clone(p.pending[:min(len(p.pending), p.most)])
		p.pending = slices.Delete(p.pending, 0, len(commands))
		turn = p.enterTurn()
		p.mu.Unlock()
		p.executeCommands(commands)
	}
}

// executeCommands runs the commands of one pipeline until the latest deadline of their callers. A
// caller with an earlier deadline stops waiting then.
func (p *pipeliner) executeCommands(commands []*pending) {
	ctx, stop := context.Background(), func() {}
	if last := lastDeadline(commands); !last.IsZero() {
		ctx, stop = context.WithDeadline(ctx, last)
	}
	defer stop()
	if len(commands) == 1 {
		commands[0].finish(p.client.Process(ctx, commands[0].cmd))
		return
	}
	pipe := p.client.Pipeline()
	for _, c := range commands {
		_ = pipe.Process(ctx, c.cmd) // only queues it
	}
	_, err := pipe.Exec(ctx)
	// If Redis refuses the connection, the client sets the error of the pipeline only; otherwise
	// that error is one of a command's.
	if slices.ContainsFunc(commands, func(c *pending) bool { return c.cmd.Err() != nil }) {
		err = nil
	}
	for _, c := range commands {
		c.finish(cmp.Or(c.cmd.Err(), err))
	}
}

// lastDeadline is the last deadline of the commands, or zero if any command has none.
func lastDeadline(commands []*pending) (last time.Time) {
	for _, c := range commands {
		if c.deadline.IsZero() {
			return time.Time{}
		}
		if c.deadline.After(last) {
			last = c.deadline
		}
	}
	return last
}

// finish hands the command back to its caller.
func (c *pending) finish(err error) {
	c.err = err
	close(c.done)
}

// awaitPipelines waits for the pipelines under way, which end because the client is closed. Later
// commands fail.
func (p *pipeliner) awaitPipelines() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.senders.Wait()
}
