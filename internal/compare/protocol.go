package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"taskgate/internal/compare/peers"
	"taskgate/internal/proc"
)

// scenarios is what the official conformance suite found.
type scenarios struct {
	Suite  string
	Passed int // scenarios without a failure or a warning
	All    int
}

// suites are the runs of the official suite, each with the server of this repository for it.
var suites = []struct {
	name   string
	server []string
	args   []string
}{
	{"2025-11-25, server of that version", []string{"--legacy"}, []string{"--spec-version", "2025-11-25"}},
	{"2026-07-28, server of that version", nil, []string{"--requirements", "2026-07-28"}},
}

// runProtocol runs the official suite directly and through each peer that serves Streamable HTTP in front of a server.
func runProtocol(ctx context.Context, o *options) error {
	return each(o, "protocol", 1, twice, func(p peers.Peer) ([]scenarios, error) {
		if p.SSE || p.Way == peers.ForClient || p.Way == peers.AroundServer {
			return nil, errors.New("not run: the suite speaks Streamable HTTP, and its server is reached over it")
		}
		var found []scenarios
		for _, s := range suites {
			passed, all, err := conform(ctx, o, p, s.server, s.args)
			if err != nil {
				return found, fmt.Errorf("%s: %w", s.name, err)
			}
			found = append(found, scenarios{s.name, passed, all})
		}
		return found, nil
	})
}

// conform runs one suite through one peer.
func conform(ctx context.Context, o *options, p peers.Peer, server, args []string) (passed, all int, err error) {
	l, err := newLab(o, p)
	if err != nil {
		return 0, 0, err
	}
	defer l.stop()
	l.server, err = proc.Start(proc.Command{
		Name: "conformserver", Path: filepath.Join(o.installed, "bin", "conformserver"), Args: append(server, "--listen", l.serverAddr),
	})
	if err != nil {
		return 0, 0, err
	}
	starting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := l.server.WaitListening(starting, l.serverAddr); err != nil {
		return 0, 0, err
	}
	if err := l.startGateway(ctx); err != nil {
		return 0, 0, err
	}
	pause(ctx, 3*time.Second) // some connect to the server after they have begun to listen
	node := os.Getenv("TASKGATE_NODE_DIR")
	if node == "" {
		node = filepath.Join(o.root, ".cache", "node")
	}
	results := filepath.Join(l.dir, "conformance")
	words := append([]string{filepath.Join("node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js"), "server", "--url", l.url()}, args...)
	c := exec.CommandContext(ctx, filepath.Join(node, "node_modules", ".bin", "node"), append(words, "-o", results)...)
	c.Dir = node
	out, _ := c.CombinedOutput() // its exit code tells failures, which are read from the results
	if passed, all, err = verdicts(results); err == nil && all == 0 {
		err = fmt.Errorf("the suite has no results: %s", oneLine(string(out)))
	}
	return passed, all, err
}

// verdicts counts the scenarios of a run.
func verdicts(dir string) (passed, all int, err error) {
	err = filepath.WalkDir(dir, func(file string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(file) != "checks.json" {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var checks []struct{ Status string }
		if err := json.Unmarshal(text, &checks); err != nil {
			return err
		}
		all++
		bad, ok := 0, 0
		for _, c := range checks {
			switch c.Status {
			case "FAILURE", "WARNING":
				bad++
			case "SUCCESS":
				ok++
			}
		}
		if bad == 0 && ok > 0 {
			passed++
		}
		return nil
	})
	return passed, all, err
}
