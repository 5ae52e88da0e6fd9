package chaos

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
)

// runLimit bounds the part of a run in which things go wrong.
const runLimit = 20 * time.Minute

// The whole of it: calls, and meanwhile faults of every kind.
func TestChaos(t *testing.T) {
	programtest.Long(t)
	t.Logf("seed %d", *seed)
	store := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	w := &world{store: store}
	var stores []string
	for range *gateways {
		p := redistest.NewProxy(t, store.Addr)
		w.proxies = append(w.proxies, p)
		stores = append(stores, p.URL())
	}
	u, j := startUpstream(t), newJudge()
	u.rounds = startRounds(t)
	w.fleet = newFleet(t, j, u.url, settings{heartbeat: time.Second, rounds: u.rounds.url}, only(store), stores...)
	c := newClients(t, w.fleet, j)
	c.converse(t)

	c.live(t, u, runLimit, w.harm, c.upTo(*calls, *workers))
}

// live makes calls while things go wrong, for so long at most, and holds what came of it against the promises.
func (c *clients) live(t *testing.T, u *upstream, limit time.Duration, harm func(context.Context, *tally), calls func(context.Context) int) {
	t.Helper()
	begin, injected := time.Now(), newTally()
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	calm := c.underWatch(ctx, func(ctx context.Context) { harm(ctx, injected) })
	n := calls(ctx)
	calm()
	conclude(t, c, u, n, begin, injected)
}

// newClients speak all dialects there are.
func newClients(t *testing.T, f *fleet, j *judge) *clients {
	t.Helper()
	c := &clients{fleet: f, judge: j, asked: newTally(), answered: map[int]bool{}, heard: map[int]json.RawMessage{}}
	for i := range 3 {
		l := newLegacy(j)
		ctx, stop := context.WithTimeout(t.Context(), askTimeout)
		defer stop()
		if err := l.begin(ctx, f.nodes[i%len(f.nodes)].address()); err != nil {
			t.Fatal(err)
		}
		c.dialects = append(c.dialects, l, newModern(j, true, false, false))
	}
	return c
}

// conclude waits for the end of everything, holds it against the promises, and
// prints the summary.
func conclude(t *testing.T, c *clients, u *upstream, n int, begin time.Time, injected *tally) {
	t.Helper()
	made := time.Since(begin)
	c.judge.calm()
	c.askEverywhere(t.Context(), c.dialects)
	c.noneStands(t.Context())
	c.settle(t.Context(), 8)
	if c.talk != nil {
		c.judgeTalk(t, u)
		c.judgeViewers(t.Context())
	}
	for i := range n {
		p := c.plan(*seed, i)
		c.judge.executions(p, u.executions(p.id), c.answered[i])
	}
	ends := counts{}
	forgotten := 0
	for _, r := range c.judge.records() {
		ends[outcomeOf(c.judge.ended(r))+kindOf(r)]++
		forgotten += r.forgotten
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if c.judge.rewinds {
		for _, call := range u.beside {
			c.judge.blame("%s: begun while it was executed", call)
		}
	}
	t.Logf("%s, seed %d: %d calls by up to %d clients on %d gateways in %s, all done after %s; tasks were read %d times\n\nfaults:\n%s\ncalls:\n%s\ntasks:\n%s\nquestions about tasks:\n%s\nupstream: %d streams picked up, %d of them while another read them, %d not to be found, %d calls cancelled; ends seen to be forgotten: %d",
		t.Name(), *seed, n, *workers, len(c.fleet.nodes), made.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond), c.judge.reads,
		injected, c.judge.outcomes, ends, c.asked, u.resumed, u.foreign, u.gone, u.cancels, forgotten)
	if c.talk != nil {
		t.Logf("questions of the upstreams:\n%s\nmodern upstream: %s\n\npieces shown:\n%s", c.talk.said, u.rounds.sum(), c.judge.piecesSeen())
	}
	c.judge.report(t)
}

// kindOf says, for the summary, which calls may be lost with their replica.
func kindOf(r *record) string {
	switch {
	case r.call.tool.stream:
		return " (stream)"
	case r.call.tool.retry:
		return " (recover: retry)"
	}
	return " (JSON)"
}
