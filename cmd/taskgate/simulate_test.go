package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/disktest"
	"taskgate/internal/programtest"
	"taskgate/internal/sim"
	"taskgate/redisstore/journal"
)

// The flags of make simulate.
var (
	simSeed  = flag.Uint64("seed", 1, "the first seed of TestSimulation")
	simSeeds = flag.Int("seeds", 1, "how many seeds it takes")
	simFor   = flag.Duration("for", 0, "take seeds for so long, however many these are")
	simCalls = flag.Int("calls", 100, "how many calls are made for each seed")
	simCalm  = flag.Bool("calm", false, "leave out the faults")
	simLog   = flag.String("simlog", "", "a file for what the replicas of the last seed log")
)

// TestSimulation runs whole deployments in virtual time, under faults that come from seeds.
func TestSimulation(t *testing.T) {
	begun := time.Now()
	for seed := *simSeed; seed < *simSeed+uint64(*simSeeds) || time.Since(begun) < *simFor; seed++ {
		if simulate(t, seed, *simCalls); t.Failed() {
			return
		}
	}
}

// TestKeptSeeds runs the seeds that once broke a promise. Each line of the file is a seed, how many calls are made, how
// often it is run, and what it found.
func TestKeptSeeds(t *testing.T) {
	programtest.Longest(t)
	f, err := os.Open("../../internal/sim/testdata/seeds.txt")
	must(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		var seed uint64
		var calls, times int
		_, err := fmt.Sscan(lines.Text(), &seed, &calls, &times)
		must(t, err)
		for range times {
			simulate(t, seed, calls)
		}
	}
}

// simulate runs one deployment and prints a line, and each promise that was broken.
func simulate(t *testing.T, seed uint64, calls int) {
	o := sim.Options{Seed: seed, Calls: calls, Calm: *simCalm, Folder: seed%4 == 0}
	if *simLog != "" {
		f, err := os.Create(*simLog)
		must(t, err)
		defer f.Close()
		o.Log = f
	}
	clock, over := &sim.Clock{}, make(chan struct{})
	defer close(over)
	go clock.Watch(over, time.Minute, func(why string) { panic("the clock stands still\n" + why) })
	begun := time.Now()
	var got sim.Report
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		go clock.Tick(stop)
		var err error
		got, err = sim.Run(o, startReplica)
		close(stop)
		must(t, err)
	})
	t.Logf("seed %d: %d calls and %d jobs (%d handed on), %s of virtual time in %s, %d promises broken", seed, calls, got.Jobs, got.HandedOn, got.Took.Round(time.Second), time.Since(begun).Round(time.Millisecond), len(got.Verdicts))
	for i, v := range got.Verdicts {
		if i == 5 {
			break
		}
		t.Errorf("seed %d: %s\n%s", seed, v.Sentence, v.Timeline)
	}
	if *simSeeds == 1 {
		t.Logf("how calls ended:\n%s", got.Ends)
	}
}

// replica is a gateway in a simulation.
type replica struct{ *server }

// Serve implements sim.Process.
func (r replica) Serve(ctx context.Context) error { return r.serveUntilEnd(ctx) }

// Held implements sim.Process.
func (r replica) Held() int64 { return r.budget.Held() }

// folder is the folder of a store in memory.
type folder struct{ *disktest.Folder }

// Open implements journal.Folder.
func (f folder) Open(name string, create bool) (journal.File, error) {
	opened, err := f.Folder.Open(name, create)
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// startReplica is the program that is simulated.
func startReplica(ctx context.Context, p sim.Place) (sim.Process, error) {
	var text string
	var read *config.Config
	load := func() (c *config.Config, err error) { // the server looks every three seconds
		if now := p.Config(); now != text {
			text = now
			if read, err = config.Parse("sim.yaml", []byte(text), func(string) (string, bool) { return "", false }); err == nil {
				read.SessionIdle = 5 * time.Minute // a day is longer than the simulation
			}
		}
		return read, err
	}
	c, err := load()
	if err != nil {
		return nil, err
	}
	s := newServer(c, p.Log)
	s.load, s.network = load, network{
		listen:     func(context.Context, string, string) (net.Listener, error) { return p.Listener, nil },
		dialServer: p.DialServer, dialStore: p.DialStore,
	}
	if p.Folder != nil {
		s.folder = folder{p.Folder}
	}
	return replica{s}, s.openServer(ctx)
}
