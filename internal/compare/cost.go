package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/compare/peers"
)

// cost is what a peer costs. Where there were several rounds, a time or a size is the least of them, and a rate the most.
type cost struct {
	Rate      map[string]float64 // calls per second over eight connections, by kind
	OfBare    map[string]float64 // the same as a part of the bare proxy's rate in the same round: the median
	Spread    map[string]float64 // of OfBare: the largest minus the least
	CPU       map[string]float64 // µs of processor time of the peer for each call, by kind
	CPUMost   map[string]float64 // the same of the round in which it was most
	P50, P99  float64            // ms at 50 calls per second
	Idle      float64            // MiB
	Session   float64            // KiB for each session
	Waiting   float64            // KiB for each waiting call
	ColdStart float64            // s from the start of the process to its first list of tools
	Errors    int                // calls that failed, in all rounds
	Size      float64            // MiB on disk, without Node
}

// kinds are the calls that are measured.
var kinds = []struct {
	name, tool string
	params     map[string]any
}{
	{"plain", "try_work", map[string]any{"arguments": map[string]any{}}},
	{"five events", "try_progress", map[string]any{"arguments": map[string]any{}, "_meta": map[string]any{"progressToken": "p"}}},
	{"1 MiB", "try_large", map[string]any{"arguments": map[string]any{"bytes": 1 << 20}}},
}

// quiet is the load below which the machine does nothing else.
const quiet = 1.0

// connections is how many calls are under way at a time.
const connections = 8

// measured is a peer whose cost is being measured.
type measured struct {
	*lab
	cost
	failed  error
	clients []*rawClient
	tools   map[string]string
	rates   map[string][]float64 // by kind, one for each round
}

// runCost measures the peers in rounds, one after the other in each, so that whatever else the machine does meets all of them.
func runCost(ctx context.Context, o *options) error {
	length, starts := 3*time.Second, 3
	if o.quick {
		o.rounds, length, starts = 1, 200*time.Millisecond, 1
	}
	for end := time.Now().Add(3 * time.Minute); !o.quick && ctx.Err() == nil && first(loadNow()) >= quiet && time.Now().Before(end); {
		pause(ctx, 5*time.Second) // the build of what is measured is part of the load
	}
	o.load = loadNow()
	defer func() { o.load = "" }()
	var all []*measured
	for _, p := range o.chosen() {
		m := newMeasured(p)
		all = append(all, m)
		if p.Way == peers.ForClient || p.SSE {
			m.failed = errors.New("not measured: the load of this row is Streamable HTTP")
			m.Size = sizeOf(o, p)
			continue
		}
		m.failed = m.alone(ctx, o, starts)
		log.Printf("%s has started: %v", p.Name, m.failed)
	}
	for round := range o.rounds {
		for _, k := range kinds {
			for _, m := range all {
				if m.failed == nil {
					m.failed = m.round(ctx, k.name, k.tool, k.params, length)
				}
			}
		}
		for _, m := range all {
			if m.failed == nil {
				m.failed = m.latency(ctx, length)
			}
		}
		log.Printf("round %d of %d", round+1, o.rounds)
	}
	return finishCosts(o, all)
}

func newMeasured(p peers.Peer) *measured {
	m := &measured{tools: map[string]string{}, rates: map[string][]float64{}}
	m.lab = &lab{Peer: p}
	m.cost = cost{Rate: map[string]float64{}, OfBare: map[string]float64{}, Spread: map[string]float64{}, CPU: map[string]float64{}, CPUMost: map[string]float64{}, P50: math.Inf(1), P99: math.Inf(1)}
	return m
}

// finishCosts saves what was found, and ends all.
func finishCosts(o *options, all []*measured) error {
	var bare *measured
	for _, m := range all {
		if m.Name == "bare proxy" {
			bare = m
		}
	}
	var errs []error
	for _, m := range all {
		if m.failed == nil && bare != nil && bare.failed == nil {
			for kind, rates := range m.rates {
				parts := slices.Clone(rates)
				for i := range parts {
					parts[i] /= bare.rates[kind][i]
				}
				slices.Sort(parts)
				m.OfBare[kind], m.Spread[kind] = parts[len(parts)/2], parts[len(parts)-1]-parts[0]
			}
		}
		if math.IsInf(m.P50, 0) {
			m.P50, m.P99 = 0, 0
		}
		errs = append(errs, save(o, "cost", m.Peer, m.cost, nil, m.failed))
		if m.dir != "" {
			m.stop()
		}
		log.Printf("%s: %+v %v", m.Name, m.cost, m.failed)
	}
	return errors.Join(errs...)
}

// alone measures what a fresh process needs, so many times, and leaves the last one running.
func (m *measured) alone(ctx context.Context, o *options, starts int) (err error) {
	m.Size = sizeOf(o, m.Peer)
	m.ColdStart, m.Idle, m.Session, m.Waiting = math.Inf(1), math.Inf(1), math.Inf(1), math.Inf(1)
	for n := range starts {
		if m.lab, err = newLab(o, m.Peer); err != nil {
			return err
		}
		if err := m.fresh(ctx); err != nil {
			m.stop()
			m.dir = ""
			return err
		}
		if n < starts-1 {
			m.stop()
		}
	}
	for range connections {
		m.clients = append(m.clients, &rawClient{url: m.url(), version: legacy})
	}
	for _, k := range kinds {
		if m.tools[k.tool], err = m.clients[0].tool(ctx, k.tool); err != nil {
			return err
		}
	}
	return nil
}

// fresh starts the peer, and measures its start and its memory.
func (m *measured) fresh(ctx context.Context) error {
	if m.Way != peers.AroundServer {
		if err := m.startServer(ctx); err != nil {
			return err
		}
	}
	begin := time.Now()
	if err := m.startGateway(ctx); err != nil {
		return err
	}
	for {
		_, err := (&rawClient{url: m.url(), version: legacy}).tool(ctx, "try_work")
		if err == nil {
			break
		}
		if time.Since(begin) > patience || ctx.Err() != nil {
			return err
		}
		pause(ctx, 10*time.Millisecond)
	}
	if m.gateway == nil {
		m.ColdStart, m.Idle, m.Session, m.Waiting = 0, 0, 0, 0
		return nil
	}
	m.ColdStart = min(m.ColdStart, time.Since(begin).Seconds())
	pause(ctx, time.Second)
	idle := memoryOf(m.gateway.PID())
	m.Idle = min(m.Idle, idle/(1<<20))
	const sessions, waiting = 50, 200
	var open []*rawClient
	for range sessions {
		c := &rawClient{url: m.url(), version: legacy}
		if _, err := c.tool(ctx, "try_work"); err != nil {
			return fmt.Errorf("%d sessions: %w", sessions, err)
		}
		open = append(open, c)
	}
	withSessions := memoryOf(m.gateway.PID())
	m.Session = min(m.Session, max(0, withSessions-idle)/sessions/1024)
	calling, cancel := context.WithCancel(ctx)
	defer cancel()
	name, err := open[0].tool(ctx, "try_work")
	if err != nil {
		return err
	}
	var calls sync.WaitGroup
	for n := range waiting {
		calls.Go(func() {
			_, _ = open[n%len(open)].send(calling, "tools/call", map[string]any{"name": name, "arguments": map[string]any{"seconds": 3600, "id": "waits"}})
		})
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); pause(ctx, 100*time.Millisecond) {
		if events, err := m.read(); err != nil || count(events, "begin", "waits") == waiting {
			break
		}
	}
	pause(ctx, time.Second)
	m.Waiting = min(m.Waiting, max(0, memoryOf(m.gateway.PID())-withSessions)/waiting/1024)
	cancel()
	calls.Wait()
	return nil
}

// round measures one kind of call for so long.
func (m *measured) round(ctx context.Context, kind, tool string, params map[string]any, length time.Duration) error {
	with := map[string]any{"name": m.tools[tool]}
	for k, v := range params {
		with[k] = v
	}
	var before time.Duration
	if m.gateway != nil {
		before = cpuOf(m.gateway.PID())
	}
	begin := time.Now()
	var calls atomic.Int64
	var all sync.WaitGroup
	var failures atomic.Int64
	var failure atomic.Pointer[error]
	for _, c := range m.clients {
		all.Go(func() {
			for time.Since(begin) < length {
				if _, err := c.do(ctx, "tools/call", with); err != nil {
					failures.Add(1)
					failure.Store(&err)
					pause(ctx, 100*time.Millisecond)
					continue
				}
				calls.Add(1)
			}
		})
	}
	all.Wait()
	took := time.Since(begin)
	m.Errors += int(failures.Load())
	if f, n := failures.Load(), calls.Load(); f*10 > n {
		return fmt.Errorf("%s: %d of %d calls failed: %w", kind, f, f+n, *failure.Load())
	}
	rate := float64(calls.Load()) / took.Seconds()
	m.rates[kind] = append(m.rates[kind], rate)
	m.Rate[kind] = max(m.Rate[kind], rate)
	if m.gateway != nil {
		cpu := float64((cpuOf(m.gateway.PID()) - before).Microseconds()) / float64(max(calls.Load(), 1))
		if old, ok := m.CPU[kind]; !ok || cpu < old {
			m.CPU[kind] = cpu
		}
		m.CPUMost[kind] = max(m.CPUMost[kind], cpu)
	}
	return nil
}

// latency measures plain calls at a fixed rate, each from the moment at which it was due.
func (m *measured) latency(ctx context.Context, length time.Duration) error {
	const every = 20 * time.Millisecond
	params := map[string]any{"name": m.tools["try_work"], "arguments": map[string]any{}}
	var mu sync.Mutex
	var took []float64
	var failed error
	var all sync.WaitGroup
	due := time.Now()
	for n := range int(length / every) {
		due = due.Add(every)
		pause(ctx, time.Until(due))
		at := due
		all.Go(func() {
			_, err := m.clients[n%len(m.clients)].do(ctx, "tools/call", params)
			mu.Lock()
			defer mu.Unlock()
			took, failed = append(took, float64(time.Since(at).Microseconds())/1000), errors.Join(failed, err)
		})
	}
	all.Wait()
	if failed != nil {
		return failed
	}
	slices.Sort(took)
	m.P50, m.P99 = min(m.P50, took[len(took)/2]), min(m.P99, took[len(took)*99/100])
	return nil
}

// sizeOf is what is installed, in MiB.
func sizeOf(o *options, p peers.Peer) float64 {
	path := p.Installation(o.installed)
	if path == "" && p.Way != peers.NoPeer && p.Debian == "" {
		path = filepath.Join(o.installed, p.Program)
	}
	if p.Debian != "" {
		path = filepath.Join("/usr/sbin", p.Program)
	}
	var total int64
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				total += info.Size()
			} else if info, err := d.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil
	})
	return float64(total) / (1 << 20)
}
