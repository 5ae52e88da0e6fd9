package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
)

// returns is a Redis that has nothing but snapshots. It is killed again and again, and comes back
// under gateways that all live: as it was some time ago, with heartbeats that have expired
// since, or with nothing at all, or as it was, after an outage.
type returns struct {
	store *redistest.Server
	judge *judge
}

// ways are those in which it comes back, with what each takes, in relation to -oldest.
var ways = []struct {
	name  string
	do    func(s returns, ctx context.Context, takes time.Duration)
	takes func(r *rand.Rand) float64
}{
	{"older", returns.older, func(r *rand.Rand) float64 { return 1./30 + r.Float64()*29/30 }},
	{"empty", returns.empty, takes(0)},
	{"after an outage", returns.late, takes(2. / 3)},
	{"after a longer outage", returns.late, takes(4. / 3)},
	{"after the longest outage", returns.late, takes(3)},
}

func takes(part float64) func(*rand.Rand) float64 { return func(*rand.Rand) float64 { return part } }

// harm has it come back so often, in each way in turn, and gives the gateways time to do something
// wrong then.
func (s returns) harm(ctx context.Context, times int, injected *tally) {
	r := rand.New(rand.NewPCG(*seed, 8))
	var order []int
	for range times {
		if len(order) == 0 {
			order = r.Perm(len(ways))
		}
		way := ways[order[0]]
		order = order[1:]
		wait(ctx, heartbeatOfReturns+time.Duration(r.Int64N(int64(heartbeatOfReturns))))
		way.do(s, ctx, time.Duration(way.takes(r)*float64(*oldest)))
		injected.add("redis killed, and back " + way.name)
		wait(ctx, heartbeatOfReturns+time.Duration(r.Int64N(int64(heartbeatOfReturns))))
	}
}

const heartbeatOfReturns = 2 * time.Second

// older has it come back as it was a while ago.
func (s returns) older(ctx context.Context, age time.Duration) {
	then := time.Now()
	s.store.Do("save")
	wait(ctx, age)
	s.store.Kill()
	s.store.Restart()
	s.judge.forgive(then, time.Now().Add(time.Second))
}

// empty has it come back with nothing.
func (s returns) empty(context.Context, time.Duration) {
	file := filepath.Join(s.folder(), "dump.rdb")
	s.store.Kill()
	_ = os.Remove(file) // if there is one
	s.store.Restart()
	s.judge.empty()
}

// late has it come back as it was after an outage. Nothing that it has answered is lost.
func (s returns) late(ctx context.Context, takes time.Duration) {
	s.store.Do("client", "pause", takes.Milliseconds(), "write")
	s.store.Do("save")
	s.store.Kill()
	wait(ctx, takes)
	s.store.Restart()
}

func (s returns) folder() string { return fmt.Sprint(s.store.Do("config", "get", "dir").([]any)[1]) }

// Redis comes back older, empty or after an outage, while sessions, parked calls, tasks, those that wait
// for a place as well, and questions are open. No gateway dies, so none takes anything from another, no
// call is lost or executed beside itself, and each end that a client has seen stays: whoever has seen to
// it writes it again. What a connected client hears comes once and in order, or its stream says that some
// is missing.
func TestRedisComesBack(t *testing.T) {
	programtest.Long(t)
	store, u, j := redistest.Start(t), startUpstream(t), newJudge()
	u.rounds, u.tells = startRounds(t), true
	j.rewinds = true
	s := settings{heartbeat: heartbeatOfReturns, rounds: u.rounds.url, principal: true, resumeAfter: 300 * time.Millisecond, places: 5, away: 5 * *oldest}
	f := newFleet(t, j, u.url, s, only(store), store.URL(), store.URL(), store.URL())
	c := newClients(t, f, j)
	c.converse(t)
	var over atomic.Bool
	c.live(t, u, time.Hour, func(ctx context.Context, injected *tally) {
		returns{store, j}.harm(ctx, *backs, injected)
		over.Store(true)
	}, c.until(&over))
}
