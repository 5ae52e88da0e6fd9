package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/taskclient"
)

// Times of clients.
const (
	pollEvery   = 200 * time.Millisecond
	askTimeout  = 10 * time.Second // of one question about a task
	callTimeout = time.Minute      // of a call, which may have to wait for a store
	attention   = 30 * time.Second // how long a client stays with a task while things go wrong
	endTimeout  = 90 * time.Second // of all tasks, after everything is well again
)

// codeInvalid is how a gateway answers for a task that it does not know.
const codeInvalid = -32602

// clients make calls and look after what becomes of them.
type clients struct {
	fleet    *fleet
	judge    *judge
	dialects []dialect
	asked    *tally // what happened to questions about tasks
	talk     *talk  // what the upstream asks; nil if it asks nothing

	mu       sync.Mutex
	answered map[int]bool            // calls whose result somebody has read
	heard    map[int]json.RawMessage // and, of those that were asked, the result
}

// run has clients make calls, each one after the other, until there are n of them or it is over, and says how many
// there are.
func (c *clients) run(ctx context.Context, workers, n int, over func() bool, one func(context.Context, *call)) int {
	var next atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil && !over() {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				one(ctx, c.plan(*seed, i))
			}
		})
	}
	all.Wait()
	return min(n, int(next.Load()))
}

// upTo has clients make n calls.
func (c *clients) upTo(n, workers int) func(context.Context) int {
	return func(ctx context.Context) int {
		return c.run(ctx, workers, n, func() bool { return false }, c.one)
	}
}

// until has clients make calls until it is over.
func (c *clients) until(over *atomic.Bool) func(context.Context) int {
	return func(ctx context.Context) int { return c.run(ctx, *workers/2, math.MaxInt, over.Load, c.one) }
}

// plan is the n-th call. Without a talk, it asks nothing; and at the legacy upstream only
// where it is answered on a stream.
func (c *clients) plan(seed uint64, n int) *call {
	p := plan(seed, n)
	p.rounds = c.dialectOf(p).endpoint() == pathRounds
	if c.talk == nil || !p.rounds && !p.tool.stream {
		p.questions = nil
	}
	return p
}

// dialectOf is the client that makes a call.
func (c *clients) dialectOf(p *call) dialect { return c.dialects[p.dialect%len(c.dialects)] }

// isRefused reports whether a request has reached no gateway: nobody listens there. (What Windows says of that is not
// syscall.ECONNREFUSED.)
func isRefused(err error) bool {
	op, is := errors.AsType[*net.OpError](err)
	return is && op.Op == "dial"
}

// one is a client with one call.
func (c *clients) one(ctx context.Context, p *call) {
	d := c.dialectOf(p)
	u := &user{clients: c, call: p}
	limit := callTimeout + p.takes + c.fleet.settings.away
	if p.behaviour == hangsUp {
		limit = p.after/2 + time.Millisecond
	}
	asking, stop := context.WithTimeout(ctx, limit)
	result, task, err := d.call(asking, u, u.addr())
	for isRefused(err) && wait(asking, pollEvery/4) {
		result, task, err = d.call(asking, u, u.addr())
	}
	late := asking.Err() != nil && ctx.Err() == nil
	stop()
	if err != nil && c.talk != nil {
		c.talk.leave(p)
	}
	var refused *taskclient.Error
	switch {
	case errors.Is(err, errSilent):
		c.judge.count("call parked, and nobody came back")
	case errors.As(err, &refused) && refused.Code == codeWrong && p.outcome == rpcError:
		c.judge.count("call answered with the upstream's error")
	case errors.As(err, &refused):
		c.judge.count(fmt.Sprintf("call refused: %d %s", refused.Code, refused.Message))
		if c.judge.rewinds && (refused.Message == lostMessage || refused.Message == stoppedMessage) {
			c.judge.blame("%s (%s) is refused, and the gateway that ran it lives: %v", p.id, d.name(), err)
		}
		c.judge.disturbed(ctx, "%s (%s) is refused: %v", p.id, d.name(), err)
		wait(ctx, pollEvery)
	case err != nil && p.behaviour == hangsUp:
		c.judge.count("call hung up by the client")
	case errors.Is(err, errForgotten):
		c.judge.count("call whose session was forgotten")
	case err != nil && late && c.judge.rewinds:
		c.judge.blame("%s (%s, %s) has no answer after %s", p.id, p.tool.name, d.name(), limit)
	case err != nil:
		c.judge.count("call not answered (its gateway was gone)")
		c.judge.disturbed(ctx, "%s (%s) is not answered: %v", p.id, d.name(), err)
	default:
		if r := c.accept(p, d, result, task); r != nil {
			c.attend(ctx, p, r)
		}
	}
}

// accept takes the answer to a call: a result, or a task, which it returns.
func (c *clients) accept(p *call, d dialect, result json.RawMessage, task *state) *record {
	if task == nil {
		c.judge.count("call answered without a task (" + d.name() + ")")
		c.mark(p, result)
		if err := checkResult(p, result); err != nil {
			c.judge.blame("%s: answered without a task: %v", p.id, err)
		}
		return nil
	}
	c.judge.count("call made a task (" + d.name() + ")")
	r := c.judge.acknowledged(p, d, *task)
	c.followAll(p, r)
	return r
}

// mark says that somebody has the result of a call.
func (c *clients) mark(p *call, result json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered[p.n] = true
	if len(p.questions) > 0 {
		c.heard[p.n] = result
	}
}

// attend does with a task what the plan says.
func (c *clients) attend(ctx context.Context, p *call, r *record) {
	ctx, stop := context.WithTimeout(ctx, attention)
	defer stop()
	switch p.behaviour {
	case leaves:
		return
	case cancels:
		wait(ctx, p.after)
		c.cancel(ctx, p, r)
	case reconnects:
		c.look(ctx, p.random, r)
		r.dialect.reconnect()
		wait(ctx, p.after)
	}
	for ctx.Err() == nil && c.judge.ended(r) == nil {
		if p.behaviour == waits || c.judge.asks(r) {
			asking, stop := context.WithTimeout(ctx, askTimeout)
			if err := r.dialect.wait(asking, c.fleet.any(p.random), r.id); err != nil {
				c.asked.add("wait: " + brief(err))
			}
			stop()
		}
		if !c.look(ctx, p.random, r) {
			return
		}
		wait(ctx, pollEvery)
	}
}

// look reads a task on any gateway, and reports whether there is any sense in
// doing so again.
func (c *clients) look(ctx context.Context, random *rand.Rand, r *record) bool {
	return c.lookAt(ctx, c.fleet.any(random), r) == nil || c.judge.ended(r) == nil && !r.gone()
}

// lookAt reads a task on one gateway.
func (c *clients) lookAt(ctx context.Context, addr string, r *record) error {
	asking, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	s, err := r.dialect.get(asking, addr, r.id)
	var refused *taskclient.Error
	switch {
	case err == nil && s.isMissing():
		c.asked.add("get: not in the store")
		c.judge.missing(r, addr, s.ended(), s.err)
	case err == nil:
		c.asked.add("get: answered")
		c.judge.observe(r, s)
		if s.status == taskclient.Completed {
			c.mark(r.call, s.result)
		}
		for key, name := range s.asked {
			if open := c.talk.open(name); open > inputTimeout+c.fleet.patience() {
				c.judge.blame("%s: task %s, %s is still asked after %s", r.call.id, r.id, name, open)
			}
			c.question(name, key, func(ctx context.Context, addr, value string, strange bool) error {
				return r.dialect.answer(ctx, addr, r.id, key, value, strange)
			})
		}
	case errors.As(err, &refused) && refused.Code == codeInvalid:
		c.asked.add("get: unknown")
		c.judge.missing(r, addr, false, refused)
	default:
		c.asked.add("get: " + brief(err))
		c.judge.disturbed(ctx, "%s (%s) cannot be read: %v", r.call.id, r.dialect.name(), err)
	}
	return err
}

// cancel asks for the end of a task until that is heard.
func (c *clients) cancel(ctx context.Context, p *call, r *record) {
	c.judge.cancelling(r, false)
	for ctx.Err() == nil {
		addr := c.fleet.any(p.random)
		asking, stop := context.WithTimeout(ctx, askTimeout)
		err := r.dialect.cancel(asking, addr, r.id)
		stop()
		var refused *taskclient.Error
		switch {
		case err == nil:
			c.asked.add("cancel: answered")
			c.judge.cancelling(r, true)
			return
		case errors.As(err, &refused) && refused.Code == codeInvalid:
			c.asked.add("cancel: unknown")
			c.judge.missing(r, addr, false, refused)
			return
		}
		c.asked.add("cancel: " + brief(err))
		c.judge.disturbed(ctx, "%s (%s) cannot be cancelled: %v", p.id, r.dialect.name(), err)
		wait(ctx, pollEvery)
	}
}

// underWatch has things go wrong, tasks that have ended watched, and gateways asked what
// they have, until the returned function is called.
func (c *clients) underWatch(ctx context.Context, harm func(context.Context)) func() {
	ctx, stop := context.WithCancel(ctx)
	var harming, watching sync.WaitGroup
	harming.Go(func() { harm(ctx) })
	look, blind := context.WithCancel(context.Background())
	for i := range uint64(3) {
		watching.Go(func() { c.watch(look, i) })
	}
	for i, n := range c.fleet.nodes {
		watching.Go(func() { c.keepAsking(look, n, uint64(i)) })
	}
	return func() {
		stop()
		harming.Wait()
		blind()
		watching.Wait()
	}
}

// watch reads tasks that have ended again and again, until ctx does: their ends
// must stay what they are.
func (c *clients) watch(ctx context.Context, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1<<63))
	for wait(ctx, 10*time.Millisecond) {
		if r := c.judge.anyEnded(random); r != nil {
			// ctx ends the watch and not a question that is on its way.
			_ = c.lookAt(context.Background(), c.fleet.any(random), r)
		}
	}
}

// settle waits, when everything is well again, until all tasks have ended, and then
// reads each of them on every gateway.
func (c *clients) settle(ctx context.Context, workers int) {
	ctx, stop := context.WithTimeout(ctx, endTimeout)
	defer stop()
	todo := make(chan *record)
	var all sync.WaitGroup
	for i := range workers {
		random := rand.New(rand.NewPCG(uint64(i), 2))
		all.Go(func() {
			for r := range todo {
				c.conclude(ctx, random, r)
			}
		})
	}
	for _, r := range c.judge.records() {
		todo <- r
	}
	close(todo)
	all.Wait()
}

// conclude sees one task to its end.
func (c *clients) conclude(ctx context.Context, random *rand.Rand, r *record) {
	for c.judge.ended(r) == nil && !r.gone() {
		c.look(ctx, random, r)
		if !wait(ctx, pollEvery/4) && c.judge.ended(r) == nil {
			c.judge.blame("%s (%s): task %s, acknowledged at %s, has not ended", r.call.id, r.call.tool.name, r.id, r.at.Format("15:04:05.000"))
			return
		}
	}
	for _, n := range c.fleet.running() {
		c.confirm(ctx, n, r)
	}
	if c.talk != nil && !r.gone() {
		c.again(ctx, random, r)
	}
}

// confirm reads the end of a task on one gateway. A store that went back in time may have
// to be told of it again.
func (c *clients) confirm(ctx context.Context, n *node, r *record) {
	for !r.gone() {
		if c.lookAt(ctx, n.address(), r) == nil && c.judge.settled(r) {
			return
		}
		if !r.gone() && !wait(ctx, pollEvery) {
			c.judge.blame("%s: task %s cannot be read on %s", r.call.id, r.id, n.name)
			return
		}
	}
}

// brief is the kind of an error, for the summary.
func brief(err error) string {
	var refused *taskclient.Error
	switch {
	case errors.As(err, &refused):
		return fmt.Sprintf("error %d", refused.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	return "no connection"
}
