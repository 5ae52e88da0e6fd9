package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"taskgate/internal/compare/peers"
)

// conditions say where and when something was measured.
type conditions struct {
	Date    time.Time `json:"date"`
	Machine string    `json:"machine"`
	Cores   int       `json:"cores"`
	Load    string    `json:"load"` // /proc/loadavg when the measurement ended; of the costs, when it began
	Command string    `json:"command"`
	Version string    `json:"version"` // of the peer
	Commit  string    `json:"commit"`  // of this repository
	Failed  string    `json:"failed,omitempty"`
}

// entry is what a row found of one peer.
type entry[T any] struct {
	Peer string `json:"peer"`
	conditions
	Found T  `json:"found"`
	Again *T `json:"again,omitempty"` // what a second run found, in the rows that are quick
}

// saving orders writers of one file.
var saving sync.Mutex

// save puts what was found of a peer into the row's file, in place of what was there.
func save[T any](o *options, row string, p peers.Peer, found T, again *T, failed error) error {
	saving.Lock()
	defer saving.Unlock()
	all, err := load[T](o, row)
	if err != nil {
		return err
	}
	e := entry[T]{Peer: p.Name, conditions: o.conditions(row, p), Found: found, Again: again}
	if failed != nil {
		e.Failed = oneLine(failed.Error())
	}
	all = append(slices.DeleteFunc(all, func(e entry[T]) bool { return e.Peer == p.Name }), e)
	order := peers.All()
	at := func(e entry[T]) int {
		return slices.IndexFunc(order, func(p peers.Peer) bool { return p.Name == e.Peer })
	}
	slices.SortStableFunc(all, func(a, b entry[T]) int { return at(a) - at(b) })
	text, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.results, row+".json"), append(text, '\n'), 0o644)
}

// load reads the file of a row.
func load[T any](o *options, row string) (all []entry[T], err error) {
	text, err := os.ReadFile(filepath.Join(o.results, row+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(text, &all)
}

func (o *options) conditions(row string, p peers.Peer) conditions {
	c := conditions{Date: time.Now().UTC().Truncate(time.Second), Cores: runtime.NumCPU(), Version: o.version(p), Command: "make compare ROWS=" + row}
	info, _ := os.ReadFile("/proc/cpuinfo")
	if m := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(info); m != nil {
		c.Machine = string(m[1]) + ", " + runtime.GOOS + "/" + runtime.GOARCH
	}
	if c.Load = o.load; c.Load == "" {
		c.Load = loadNow()
	}
	commit, _ := exec.Command("git", "-C", o.root, "rev-parse", "--short=8", "HEAD").Output()
	c.Commit = strings.TrimSpace(string(commit))
	return c
}

// loadNow is the load of the machine: the means of 1, 5 and 15 minutes.
func loadNow() string {
	now, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(now))[:3], " ")
}

// version is the pinned one, or that of the installed Debian package.
func (o *options) version(p peers.Peer) string {
	if p.Debian == "" {
		return p.Version
	}
	flag := "-v"
	out, _ := exec.Command(p.Program, flag).CombinedOutput()
	return regexp.MustCompile(`[0-9]+\.[0-9]+\.[0-9]+`).FindString(string(out)) + " (Debian)"
}

// once and twice say how often a row is measured.
const (
	once  = false
	twice = true
)

// each measures the chosen peers, so many at a time, and saves what is found. What fails is saved as that, and the others go on.
func each[T any](o *options, row string, together int, again bool, measure func(peers.Peer) (T, error)) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	places := make(chan struct{}, together)
	for _, p := range o.chosen() {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			found, failed := measure(p)
			var second *T
			if again && failed == nil && !o.quick {
				if found, err := measure(p); err == nil {
					second = &found
				}
			}
			if err := save(o, row, p, found, second, failed); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}
