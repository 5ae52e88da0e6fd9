package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"taskgate/internal/compare/peers"
)

// silence is what one agent got of a tool that says nothing for long.
type silence struct {
	Agent, Title, Version string
	Shown                 string
	Worked                bool
	Seconds               float64
	Calls                 int // how many the server got
}

// runSilence runs every coding agent that "make agents" has.
func runSilence(ctx context.Context, o *options) error {
	test := filepath.Join(o.installed, "bin", "agents.test")
	dir := filepath.Join(o.root, "internal", "agents")
	if err := command(ctx, dir, "go", "test", "-c", "-trimpath", "-o", test, "."); err != nil {
		return err
	}
	row := fmt.Sprintf("silence-%gs", o.seconds)
	return each(o, row, o.together, once, func(p peers.Peer) ([]silence, error) {
		if p.SSE {
			return nil, fmt.Errorf("not run: clients reach it over HTTP+SSE alone, and the agents' entries of this test are for Streamable HTTP or stdio")
		}
		found, err := silenceOf(ctx, o, p, test, dir)
		log.Printf("%s %s: %+v %v", row, p.Name, found, err)
		return found, err
	})
}

// silenceOf runs the agents with one peer.
func silenceOf(ctx context.Context, o *options, p peers.Peer, test, dir string) ([]silence, error) {
	l, err := newLab(o, p)
	if err != nil {
		return nil, err
	}
	defer l.stop()
	if err := l.startReady(ctx); err != nil {
		return nil, err
	}
	at := l.url()
	if p.Way == peers.ForClient {
		words, err := json.Marshal(append([]string{l.program.Path}, l.program.Args...))
		if err != nil {
			return nil, err
		}
		at = string(words)
	}
	report := filepath.Join(l.dir, "report.json")
	c := exec.CommandContext(ctx, test, "-test.run", "^TestBeside$", "-test.timeout", "30m", "-all", "-beside", at,
		"-beside-seconds", strconv.FormatFloat(o.seconds, 'g', -1, 64), "-beside-report", report)
	c.Dir = dir
	out, failed := c.CombinedOutput()
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", failed, out)
	}
	var found []silence
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, err
	}
	all, err := l.read()
	for i, f := range found {
		found[i].Calls = count(all, "begin", f.Agent)
		if found[i].Shown == "the model was never asked" {
			log.Printf("%s, %s: %s", p.Name, f.Title, out)
		}
	}
	return found, err
}
