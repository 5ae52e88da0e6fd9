package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"taskgate/internal/mcp"
	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

const (
	// promptly is how long a call may take whose questions are all answered at once, by the
	// time of a pace. It takes a quarter of a second at most, and a wake-up that was lost is
	// made up for within 30 s.
	promptly = 30 * time.Second
	// step is how far a pace goes with each request.
	step = 100 * time.Millisecond
	// neverTimesOut is how long questions wait there: a call that waits for an answer which
	// has been given does not end in time.
	neverTimesOut = 10 * time.Minute
	// glance is how often a program looks that is not told.
	glance = 5 * time.Millisecond
)

// Clients are programs: they answer each question as soon as they see it, many at a time,
// at any gateway. That is often before the gateway that asked has heard that its question
// is stored: one of them hears late of what it has written, and of what others write at
// once. No call waits for an answer that was given.
func TestAnsweredAtOnce(t *testing.T) {
	programtest.Long(t)
	store, u, j := redistest.Start(t), startUpstream(t), newJudge()
	u.rounds = startRounds(t)
	slow := redistest.NewProxy(t, store.Addr)
	slow.Latency("evalsha", 2*distance)
	f := newFleet(t, j, u.url, settings{heartbeat: 5 * time.Second, rounds: u.rounds.url, patience: neverTimesOut},
		only(store), slow.URL(), store.URL(), store.URL())
	c := newClients(t, f, j)
	c.prompt = true
	c.converse(t)
	for _, d := range c.dialects {
		if m, ok := d.(*modern); ok {
			m.hears = c.question
		}
	}
	begin := time.Now()
	calm := c.underWatch(t.Context(), func(context.Context) {})
	ctx, stop := context.WithCancel(t.Context())
	var p pace
	var running sync.WaitGroup
	running.Go(func() { p.run(ctx, f) })
	made := c.runPrompt(ctx, &p, *calls, *workers)
	stop()
	running.Wait()
	calm()
	c.judgePrompt(u)
	if !j.content() { // what hangs is known, and would only be waited for again
		j.report(t)
		return
	}
	conclude(t, c, u, made, begin, newTally())
}

// runPrompt makes n calls that are asked something, unless one hangs, and says how many
// there are with those that are left out.
func (c *clients) runPrompt(ctx context.Context, pace *pace, n, workers int) int {
	var made atomic.Int64
	over := func() bool { return int(made.Load()) >= n || !c.judge.content() }
	return c.run(ctx, workers, math.MaxInt, over, func(ctx context.Context, p *call) {
		if len(p.questions) > 0 {
			made.Add(1)
			c.onePrompt(ctx, pace, p)
		}
	})
}

// pace is a clock that goes slower on a busy machine: it goes a step further with each request
// that any gateway answers from Redis, one after the other with a step between them.
type pace struct{ gone atomic.Int64 }

// run is the clock, until ctx ends.
func (p *pace) run(ctx context.Context, f *fleet) {
	random := rand.New(rand.NewPCG(*seed, 5))
	web := &http.Client{Transport: newTransport()}
	defer web.CloseIdleConnections()
	for wait(ctx, step) {
		c := &taskclient.Client{URL: "http://" + f.any(random) + pathChaos, HTTP: web, Tasks: true}
		_, _ = c.Do(ctx, mcp.MethodTasksGet, map[string]any{"taskId": uuid.NewString()})
		p.gone.Add(int64(step))
	}
}

// limit is a context that ends once the clock has gone so far from now.
func (p *pace) limit(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	until := p.gone.Load() + int64(d)
	go func() { // ends with ctx
		defer stop()
		for p.gone.Load() < until && wait(ctx, step) {
			continue
		}
	}()
	return ctx, stop
}

// hasten is a planned call whose client is a program: the call is short, and all of its
// questions are answered at once.
func (c *call) hasten() {
	c.takes = c.takes / 16
	c.behaviour = waits
	if c.n%4 == 0 {
		c.behaviour = polls
	}
	for i := range c.questions {
		c.questions[i].delay, c.questions[i].manner = 0, once
	}
}

// onePrompt is one call, which has to end in time.
func (c *clients) onePrompt(ctx context.Context, pace *pace, p *call) {
	ctx, stop := pace.limit(ctx, promptly)
	defer stop()
	d, u := c.dialectOf(p), &user{clients: c, call: p}
	result, task, err := d.call(ctx, u, u.addr())
	refused, isError := errors.AsType[*taskclient.Error](err)
	switch {
	case isError && refused.Code == codeWrong && p.outcome == rpcError:
		c.judge.count("call answered with the upstream's error")
	case err != nil:
		c.judge.blame("%s (%s, %s): no answer, although each question was answered at once: %v", p.id, p.tool.name, d.name(), err)
	default:
		if r := c.accept(p, d, result, task); r != nil {
			c.attendPrompt(ctx, p, r)
		}
	}
}

// attendPrompt sees a task to its end.
func (c *clients) attendPrompt(ctx context.Context, p *call, r *record) {
	for c.judge.ended(r) == nil {
		if _, legacy := r.dialect.(*legacy); legacy || p.behaviour == waits {
			if err := r.dialect.wait(ctx, c.fleet.any(p.random), r.id); err != nil {
				c.asked.add("wait: " + brief(err))
			}
		}
		c.look(ctx, p.random, r)
		if !wait(ctx, glance) && c.judge.ended(r) == nil {
			c.judge.blame("%s (%s, %s): task %s hangs, although each question was answered at once: %s", p.id, p.tool.name, r.dialect.name(), r.id, c.talk.tell(p))
			return
		}
	}
}

// judgePrompt: each question was answered by its user, with nothing gone wrong.
func (c *clients) judgePrompt(u *upstream) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rounds.mu.Lock()
	defer u.rounds.mu.Unlock()
	for _, all := range []map[string]*asked{u.asked, u.rounds.asked} {
		for name, a := range all {
			if want := "first of " + name; len(a.answers) != 1 || a.answers[0] != want {
				c.judge.blame("%s: the upstream was answered %q", name, a.answers)
			}
		}
	}
}

// listened answers the questions of a task that a listen stream tells of.
func (m *modern) listened(body json.RawMessage) {
	var n struct {
		Method string
		Params struct {
			TaskID        string
			InputRequests map[string]inputRequest
		}
	}
	if m.hears == nil || json.Unmarshal(body, &n) != nil || n.Method != mcp.NotifyTask {
		return
	}
	for key, name := range names(n.Params.InputRequests) {
		m.hears(name, key, func(ctx context.Context, addr, value string, strange bool) error {
			if n.Params.TaskID == "" {
				return fmt.Errorf("a task without an id asks %s", name)
			}
			return m.answer(ctx, addr, n.Params.TaskID, key, value, strange)
		})
	}
}
