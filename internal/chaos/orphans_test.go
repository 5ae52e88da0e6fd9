package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
)

const (
	// distance is how far away Redis is from gateways that have much to take over.
	distance = 10 * time.Millisecond
	// survivors is how many tasks each of the gateways runs that go on.
	survivors = 30
	// takenWithin is how long it may take until the last task is taken over.
	takenWithin = time.Minute
)

// bereaved is a gateway that is lost with many tasks, between others that run some.
type bereaved struct {
	*clients
	store *redistest.Server
	// strangers are the clients of the gateway that is lost: no other gateway has heard
	// of them, nor agreed with the server on what they can do.
	strangers []dialect

	mu    sync.Mutex
	tasks []*held
}

// held is a task that its upstream does not answer until it is let go.
type held struct {
	*record
	on    int    // the node that made it
	lease string // under which it was made: replica#adoption
}

// replica and adoption are the parts of a lease.
func replica(lease string) string { name, _, _ := strings.Cut(lease, "#"); return name }

func adoption(lease string) int {
	_, number, _ := strings.Cut(lease, "#")
	n, err := strconv.Atoi(number)
	if err != nil {
		return -1
	}
	return n
}

// A gateway dies with many tasks, far away from Redis. Those who take them over beat their
// hearts all the while, leave each other's tasks alone, and know what their server can do.
func TestManyOrphans(t *testing.T) {
	programtest.Long(t)
	store := redistest.Start(t)
	var stores []string
	for range 3 {
		p := redistest.NewProxy(t, store.Addr)
		p.Latency("", distance)
		stores = append(stores, p.URL())
	}
	u, j := startUpstream(t), newJudge()
	u.held = make(chan struct{})
	f := newFleet(t, j, u.url, settings{heartbeat: 3 * time.Second, principal: true}, only(store), stores...)
	b := &bereaved{clients: &clients{fleet: f, judge: j, asked: newTally(), answered: map[int]bool{}}, store: store}
	b.strangers, b.dialects = b.speak(t, 0, false), b.speak(t, 1, true)
	begin := time.Now()
	b.fill(t.Context(), *orphans)
	b.note(t.Context())
	filled := time.Now()
	alive := b.alive()
	calm := b.underWatch(t.Context(), func(ctx context.Context) { b.watchHearts(ctx, alive) })
	f.nodes[0].kill()
	b.awaitTaken(t.Context(), alive)
	taken := time.Now()
	b.askEverywhere(t.Context(), b.strangers)
	close(u.held)
	j.calm()
	b.noneStands(t.Context())
	ended := time.Now()
	calm()
	b.askEverywhere(t.Context(), b.dialects)
	b.settle(t.Context(), 64)
	b.judgeHeld(u)
	j.report(t)
	t.Logf("seed %d: %d tasks made in %s, those of the lost gateway taken over after %s, all at their end after %s more, and read after %s\n%s", *seed, len(b.tasks),
		filled.Sub(begin).Round(time.Millisecond), taken.Sub(filled).Round(time.Millisecond), ended.Sub(taken).Round(time.Millisecond), time.Since(ended).Round(time.Millisecond), b.asked)
}

// speak are clients of one gateway, one of each era. What they can be asked tells them
// from those of another one.
func (b *bereaved) speak(t *testing.T, on int, asks bool) []dialect {
	t.Helper()
	m, l := newModern(b.judge, true, false, asks), newLegacy(b.judge)
	if asks {
		l.asked = func(name, _ string, _ giving) { b.judge.blame("a client was asked %s", name) }
	}
	ctx, stop := context.WithTimeout(t.Context(), askTimeout)
	defer stop()
	if err := l.begin(ctx, b.fleet.nodes[on].address()); err != nil {
		t.Fatal(err)
	}
	return []dialect{m, l}
}

// fill has the first gateway make n tasks, and the others some.
func (b *bereaved) fill(ctx context.Context, n int) {
	type job struct{ i, on int }
	jobs := make(chan job)
	var all sync.WaitGroup
	for range *workers {
		all.Go(func() {
			for job := range jobs {
				b.make(ctx, job.i, job.on)
			}
		})
	}
	for i := range n {
		jobs <- job{i, 0}
	}
	for i := range survivors * (len(b.fleet.nodes) - 1) {
		jobs <- job{n + i, 1 + i%(len(b.fleet.nodes)-1)}
	}
	close(jobs)
	all.Wait()
}

// heldTools are those of the tasks, most of which another gateway can go on with.
var heldTools = []string{"always_stream", "always_stream", "always_stream", "always_json", "always_retry"}

// make makes one task on a gateway.
func (b *bereaved) make(ctx context.Context, i, on int) {
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	p := &call{n: i, id: fmt.Sprintf("held-%d", i), tool: toolOf(heldTools[i%len(heldTools)]), outcome: well, dialect: i, random: rand.New(rand.NewPCG(*seed, uint64(i)))}
	d := b.dialects[i%2]
	if on == 0 {
		d = b.strangers[i%2]
	}
	_, task, err := d.call(ctx, &user{clients: b.clients, call: p}, b.fleet.nodes[on].address())
	if err != nil || task == nil {
		b.judge.blame("%s (%s, %s) became no task: %v", p.id, p.tool.name, d.name(), err)
		return
	}
	r := b.judge.acknowledged(p, d, *task)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks = append(b.tasks, &held{record: r, on: on})
}

// field reads one field of the records of tasks.
const field = `
local list = {}
for i = 2, #ARGV do
  list[i - 1] = redis.call('HGET', 'tg:{' .. string.sub(ARGV[i], 1, 2) .. '}:t:' .. ARGV[i], ARGV[1]) or ''
end
return list`

// read reads one field of all tasks, in their order.
func (b *bereaved) read(name string) []string {
	args := []any{"eval", field, 0, name}
	for _, h := range b.tasks {
		args = append(args, h.id)
	}
	var list []string
	for _, v := range b.store.Do(args...).([]any) {
		list = append(list, v.(string))
	}
	return list
}

// await waits until a field of all tasks is as it should be, and says of how many it is not.
func (b *bereaved) await(ctx context.Context, within time.Duration, field string, holds func(*held, string) bool) (left int) {
	ctx, stop := context.WithTimeout(ctx, within)
	defer stop()
	for left = len(b.tasks); left > 0 && wait(ctx, pollEvery); {
		left = 0
		for i, value := range b.read(field) {
			if !holds(b.tasks[i], value) {
				left++
			}
		}
	}
	return left
}

// note notes who runs what, once it is stored where each stream can be resumed: a call
// whose gateway dies before that is lost.
func (b *bereaved) note(ctx context.Context) {
	if left := b.await(ctx, askTimeout, "checkpoint", func(h *held, checkpoint string) bool { return checkpoint != "" || !h.call.tool.stream }); left > 0 {
		b.judge.blame("%d tasks have no checkpoint after %s", left, askTimeout)
	}
	for i, lease := range b.read("lease") {
		b.tasks[i].lease = lease
	}
}

// alive are the replicas that live on, by their names.
func (b *bereaved) alive() map[string]bool {
	names := map[string]bool{}
	for _, h := range b.tasks {
		if h.on != 0 {
			names[replica(h.lease)] = true
		}
	}
	return names
}

// lapsed names the replicas whose heartbeat has expired, by the clock of Redis.
const lapsed = `
local t, list = redis.call('TIME'), {}
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local entries = redis.call('HGETALL', 'tg:replicas')
for i = 1, #entries, 2 do
  local expires = tonumber(string.match(entries[i + 1], '^%d+'))
  if expires <= now then list[#list + 1] = entries[i] end
end
return list`

// watchHearts watches the heartbeats of replicas until ctx ends. None may expire.
func (b *bereaved) watchHearts(ctx context.Context, alive map[string]bool) {
	expired := map[string]bool{}
	for wait(ctx, 20*time.Millisecond) {
		for _, v := range b.store.Do("eval", lapsed, 0).([]any) {
			if name := v.(string); alive[name] && !expired[name] {
				expired[name] = true
				b.judge.blame("the heartbeat of %s, which lives, has expired", name)
			}
		}
	}
}

// awaitTaken waits until others have all tasks of the gateway that was lost.
func (b *bereaved) awaitTaken(ctx context.Context, alive map[string]bool) {
	if left := b.await(ctx, takenWithin, "lease", func(h *held, lease string) bool { return h.on != 0 || alive[replica(lease)] }); left > 0 {
		b.judge.blame("%d tasks of the gateway that was lost were not taken over within %s", left, takenWithin)
	}
}

// judgeHeld: what the gateways ran that live is theirs still, and was executed once; what
// was lost with the other has changed hands once.
func (b *bereaved) judgeHeld(u *upstream) {
	moved := counts{}
	for i, lease := range b.read("lease") {
		h := b.tasks[i]
		runs, end := u.executions(h.call.id), b.judge.ended(h.record)
		most := 1
		if h.on == 0 && h.call.tool.retry {
			most = 2
		}
		switch {
		case h.on != 0 && lease != h.lease:
			moved["taken from a gateway that lives"]++
		case h.on == 0 && adoption(lease) != adoption(h.lease)+1:
			moved["of the gateway that was lost, taken over "+strconv.Itoa(adoption(lease)-adoption(h.lease))+" times"]++
		}
		if runs > most {
			b.judge.blame("%s (%s): executed %d times", h.call.id, h.call.tool.name, runs)
		}
		lost := h.on == 0 && !h.call.tool.stream && !h.call.tool.retry
		if got := outcomeOf(end); end != nil && (got == "failed, lost replica") != lost {
			b.judge.blame("%s (%s, on gateway %d): task %s ended as %s", h.call.id, h.call.tool.name, h.on, h.id, describe(*end))
		}
	}
	for what, n := range moved {
		b.judge.blame("%d tasks %s", n, what)
	}
}
