package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/compare/peers"
	"taskgate/internal/proc"
	"taskgate/internal/taskclient"
)

// survival is what became of the calls that met one fault.
type survival struct {
	Fault     string
	Client    string
	Calls     int
	Delivered int     // results of the tool
	Failed    int     // errors
	Silent    int     // neither, until long after the work was to end
	RunTwice  int     // calls that the server began more than once
	Told      float64 // seconds from the fault until half of the failed calls had their errors
	LastTold  float64 // and until all had
	Error     string  // one of them
	Note      string  // why it was not tried, if it was not
}

// fault is what happens in the middle of all calls.
type fault struct {
	name string
	not  func(peers.Peer) string // why a peer does not meet it; empty if it does
	do   func(context.Context, *stage) error
}

var faults = []fault{
	{"the gateway is killed (SIGKILL), and started again at once", withoutGateway, killGateway},
	{"the server is killed (SIGKILL), and started again at once", never, killServer},
	{"all connections of the client are cut", never, cutAll},
	{"two replicas are restarted in turn (SIGTERM, 30 s to leave)", withoutReplicas, rollOver},
	{"Redis is killed (SIGKILL), and started again after 5 s", withoutRedis, killRedis},
}

func never(peers.Peer) string { return "" }

func withoutGateway(p peers.Peer) string {
	switch p.Way {
	case peers.NoPeer:
		return "there is no gateway"
	case peers.ForClient:
		return "it ends with its client"
	default:
		return ""
	}
}

func withoutReplicas(p peers.Peer) string {
	if p.SSE {
		return "the balancer of this test knows no sessions of HTTP+SSE"
	}
	return withoutGateway(p)
}

func withoutRedis(p peers.Peer) string {
	if p.Name != "taskgate" {
		return "it has no Redis"
	}
	return ""
}

// stage is a lab with calls under way.
type stage struct {
	*lab
	second *lab // the other replica
	wire   *tcpWire
	redis  *redisServer
}

// runSurvive has the calls of each peer meet each fault, in front of a server as the SDK makes it.
func runSurvive(ctx context.Context, o *options) error { return surviveAll(ctx, o, "survive", false) }

// runResumable does the same in front of a server that keeps what it says, so that whoever lost its connection reads on.
// Servers over stdio have no such thing.
func runResumable(ctx context.Context, o *options) error {
	return surviveAll(ctx, o, "survive-resumable", true)
}

func surviveAll(ctx context.Context, o *options, row string, resumable bool) error {
	return each(o, row, o.together, once, func(p peers.Peer) (found []survival, err error) {
		if resumable && p.Way == peers.AroundServer {
			return nil, errors.New("not run: its servers are over stdio, where nothing can be resumed")
		}
		before, err := load[[]survival](o, row)
		if err != nil {
			return nil, err
		}
		for _, f := range faults {
			if !strings.Contains(f.name, o.fault) { // what was found of it stays
				found = append(found, earlier(before, p, f)...)
				continue
			}
			for _, kind := range []string{plainClient, tasksClient} {
				if kind == tasksClient && p.Name != "taskgate" { // the row of tasks shows who gives any
					continue
				}
				s := survival{Fault: f.name, Client: kind, Note: f.not(p)}
				if s.Note == "" {
					s, err = surviveOne(ctx, o, p, f, kind, resumable)
					if err != nil {
						s.Fault, s.Client, s.Note = f.name, kind, "the test failed: "+oneLine(err.Error())
					}
				}
				log.Printf("%s: %+v", p.Name, s)
				found = append(found, s)
			}
		}
		return found, nil
	})
}

// earlier is what was found of a fault before.
func earlier(before []entry[[]survival], p peers.Peer, f fault) (found []survival) {
	for _, e := range before {
		for _, s := range e.Found {
			if e.Peer == p.Name && s.Fault == f.name {
				found = append(found, s)
			}
		}
	}
	return found
}

const (
	plainClient = "Go SDK, no tasks"
	tasksClient = "2026-07-28, takes tasks"
)

// plan says how many calls there are, and when what happens.
type plan struct {
	sessions, each int
	work           time.Duration // of the tool
	before         time.Duration // from the last beginning to the fault: longer than the grace, so that there are tasks
	after          time.Duration // how long calls may outlast the work
}

func (o *options) plan(p peers.Peer) plan {
	t := plan{sessions: 10, each: 20, work: time.Minute, before: 34 * time.Second, after: 90 * time.Second}
	if o.quick {
		t = plan{sessions: 2, each: 5, work: 4 * time.Second, before: time.Second, after: 10 * time.Second}
	}
	if p.Way == peers.ForClient {
		t.each *= t.sessions / 2
		t.sessions = 2 // each is a process
	}
	return t
}

// call is what became of one call.
type call struct {
	id   string
	text string
	err  error
	at   time.Time
}

func surviveOne(ctx context.Context, o *options, p peers.Peer, f fault, kind string, resumable bool) (survival, error) {
	s := survival{Fault: f.name, Client: kind}
	st, err := newStage(ctx, o, p, f, resumable)
	if err != nil {
		return s, err
	}
	defer st.end()
	t := o.plan(p)
	calling, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan call, t.sessions*t.each)
	var all sync.WaitGroup
	if kind == tasksClient {
		st.callForTasks(calling, t, results, &all)
	} else if err := st.callPlainly(calling, t, results, &all); err != nil {
		return s, err
	}
	s.Calls = t.sessions * t.each
	if err := st.awaitBegun(ctx, s.Calls); err != nil {
		return s, err
	}
	pause(ctx, t.before)
	struck := time.Now()
	if err := f.do(ctx, st); err != nil {
		return s, err
	}
	limit := time.AfterFunc(t.work+t.after-time.Since(struck), cancel)
	defer limit.Stop()
	all.Wait()
	close(results)
	return s, s.judge(st, results, struck, calling.Err() != nil)
}

// judge counts what became of the calls.
func (s *survival) judge(st *stage, results <-chan call, struck time.Time, stopped bool) error {
	events, err := st.read()
	if err != nil {
		return err
	}
	var told []float64
	for c := range results {
		if count(events, "begin", c.id) > 1 {
			s.RunTwice++
		}
		switch {
		case c.err == nil && c.text == worked:
			s.Delivered++
		case stopped && errors.Is(c.err, context.Canceled):
			s.Silent++
		default:
			s.Failed++
			told = append(told, c.at.Sub(struck).Seconds())
			if c.err == nil {
				c.err = errors.New(c.text)
			}
			s.Error = oneLine(c.err.Error())
		}
	}
	if slices.Sort(told); len(told) > 0 {
		s.Told, s.LastTold = told[len(told)/2], told[len(told)-1]
	}
	return nil
}

// worked is what the tool says in the end.
const worked = "the work is finished"

// callPlainly begins all calls of clients that know nothing of tasks.
func (st *stage) callPlainly(ctx context.Context, t plan, results chan<- call, all *sync.WaitGroup) error {
	for n := range t.sessions {
		c, err := st.connect(ctx, legacy, nil)
		if err != nil {
			return err
		}
		name, err := c.tool(ctx, "try_work")
		if err != nil {
			return err
		}
		var calls sync.WaitGroup
		for m := range t.each {
			id := fmt.Sprintf("%d-%d", n, m)
			calls.Go(func() {
				r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: map[string]any{"id": id, "seconds": t.work.Seconds()}})
				done := call{id: id, err: err, at: time.Now()}
				if err == nil {
					done.text = textOf(r)
				}
				results <- done
			})
		}
		all.Go(func() {
			calls.Wait()
			go c.Close() // it may wait for a server that is gone
		})
	}
	return nil
}

// callForTasks begins all calls of clients that take tasks, and go on asking for them.
func (st *stage) callForTasks(ctx context.Context, t plan, results chan<- call, all *sync.WaitGroup) {
	c := &taskclient.Client{URL: st.url(), Tasks: true, HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}}
	for n := range t.sessions * t.each {
		id := fmt.Sprint(n)
		all.Go(func() {
			text, err := followTask(ctx, c, map[string]any{"id": id, "seconds": t.work.Seconds()})
			results <- call{id: id, text: text, err: err, at: time.Now()}
		})
	}
}

// newStage starts all that the calls of a fault need.
func newStage(ctx context.Context, o *options, p peers.Peer, f fault, resumable bool) (*stage, error) {
	l, err := newLab(o, p)
	if err != nil {
		return nil, err
	}
	l.resumable = resumable
	st := &stage{lab: l, wire: newTCPWire()}
	roll := f.name == faults[3].name
	if p.Name == "taskgate" && (roll || f.name == faults[4].name) {
		if st.redis, err = startRedis(ctx, l.dir); err != nil {
			return st, err
		}
		l.redis = st.redis.url()
	}
	if p.Way == peers.ForClient {
		if l.behind, err = st.wire.listen(ctx, func() string { return l.serverAddr }); err != nil {
			return st, err
		}
	}
	if err := l.start(ctx); err != nil {
		return st, err
	}
	if err := l.ready(ctx); err != nil {
		return st, err
	}
	if roll {
		return st, st.addReplica(ctx)
	}
	if p.Way != peers.ForClient {
		l.front, err = st.wire.listen(ctx, func() string { return l.addr })
	}
	return st, err
}

func (st *stage) end() {
	st.wire.close()
	if st.second != nil {
		st.second.server = nil // it is the first one's
		st.second.stop()
	}
	st.lab.stop()
	if st.redis != nil {
		st.redis.process.Kill()
	}
}

func (st *stage) awaitBegun(ctx context.Context, calls int) error {
	end := time.Now().Add(patience)
	for time.Now().Before(end) {
		events, err := st.read()
		if err != nil {
			return err
		}
		begun := 0
		for _, e := range events {
			if e.Event == "begin" {
				begun++
			}
		}
		if begun >= calls {
			return nil
		}
		pause(ctx, 100*time.Millisecond)
	}
	return fmt.Errorf("not all of %d calls have begun within %s", calls, patience)
}

func killGateway(ctx context.Context, st *stage) error {
	st.gateway.Kill()
	return st.restartGateway(ctx)
}

func killServer(ctx context.Context, st *stage) error {
	if st.server != nil {
		st.server.Kill()
		return st.startServer(ctx)
	}
	events, err := st.read() // the peer has started it, and may start it again
	for _, e := range events {
		if e.Event == "start" {
			_ = syscall.Kill(e.PID, syscall.SIGKILL)
		}
	}
	return err
}

func cutAll(_ context.Context, st *stage) error {
	st.wire.cut()
	return nil
}

// rollOver restarts both replicas as an orchestrator does.
func rollOver(ctx context.Context, st *stage) error {
	for _, l := range []*lab{st.lab, st.second} {
		l.gateway.Stop(30 * time.Second)
		if err := l.restartGateway(ctx); err != nil {
			return err
		}
	}
	return nil
}

func killRedis(ctx context.Context, st *stage) error {
	st.redis.process.Kill()
	pause(ctx, 5*time.Second)
	return st.redis.start(ctx)
}

// redisServer is a Redis that syncs each write, as docs/operations.md has it.
type redisServer struct {
	addr, dir string
	process   *proc.Process
}

func startRedis(ctx context.Context, dir string) (*redisServer, error) {
	addr, err := proc.FreeAddr()
	r := &redisServer{addr: addr, dir: dir}
	if err != nil {
		return nil, err
	}
	return r, r.start(ctx)
}
