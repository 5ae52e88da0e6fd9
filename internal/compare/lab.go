package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"taskgate/internal/compare/peers"
	"taskgate/internal/proc"
)

// lab is one peer between a client and the trial server.
type lab struct {
	peers.Peer
	o          *options
	dir        string
	events     string // the file of the trial server
	serverAddr string
	behind     string // the address that the peer calls, if not serverAddr
	addr       string // the peer's
	front      string // where clients go, if not to addr: a wire, or a balancer
	redis      string
	resumable  bool          // the server keeps what streams say
	server     *proc.Process // nil where the peer starts it
	gateway    *proc.Process // nil where there is none, or the client starts it
	program    peers.Program
}

// patience is how long a program may take to start on a machine that is busy.
const patience = 2 * time.Minute

// newLab finds addresses and files, and starts nothing.
func newLab(o *options, p peers.Peer) (*lab, error) {
	dir, err := os.MkdirTemp("", "compare")
	if err != nil {
		return nil, err
	}
	l := &lab{Peer: p, o: o, dir: dir, events: filepath.Join(dir, "events")}
	if l.serverAddr, err = proc.FreeAddr(); err != nil {
		return nil, err
	}
	l.addr, err = proc.FreeAddr()
	return l, err
}

// startReady is start, and waits until calls are answered.
func (l *lab) startReady(ctx context.Context) error {
	if err := l.start(ctx); err != nil {
		return err
	}
	return l.ready(ctx)
}

// start starts the server, and the peer in front of it.
func (l *lab) start(ctx context.Context) error {
	if l.Way != peers.AroundServer {
		if err := l.startServer(ctx); err != nil {
			return err
		}
	}
	return l.startGateway(ctx)
}

func (l *lab) startServer(ctx context.Context) (err error) {
	l.server, err = proc.Start(proc.Command{
		Name: "the trial server", Path: l.trialServer(),
		Args: []string{"-listen", l.serverAddr, "-events", l.events, fmt.Sprintf("-resumable=%t", l.resumable)},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return l.server.WaitListening(ctx, l.serverAddr)
}

func (l *lab) trialServer() string { return filepath.Join(l.o.installed, "bin", "trialserver") }

// startGateway starts the peer, and waits until it listens.
func (l *lab) startGateway(ctx context.Context) (err error) {
	if l.Way == peers.NoPeer {
		l.addr = l.serverAddr
		return nil
	}
	dir := filepath.Join(l.dir, "peer")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	behind := l.serverAddr
	if l.behind != "" {
		behind = l.behind
	}
	l.program, err = l.Start(peers.Setup{
		Listen: l.addr, Server: "http://" + behind + "/mcp", Command: []string{l.trialServer(), "-events", l.events},
		Dir: dir, Installed: l.o.installed, Redis: l.redis,
	})
	if err != nil || l.Way == peers.ForClient {
		return err
	}
	return l.restartGateway(ctx)
}

// restartGateway starts the peer as it was started before, and waits until it listens.
func (l *lab) restartGateway(ctx context.Context) (err error) {
	dir := filepath.Join(l.dir, "peer")
	l.gateway, err = proc.Start(proc.Command{Name: l.Name, Path: l.program.Path, Args: l.program.Args, Env: l.program.Env, Dir: dir})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return l.gateway.WaitListening(ctx, l.addr)
}

// stop ends all that was started, and removes its files.
func (l *lab) stop() {
	if l.gateway != nil {
		l.gateway.Stop(2 * time.Second)
	}
	if l.server != nil {
		l.server.Stop(2 * time.Second)
	}
	os.RemoveAll(l.dir)
}

// url is where clients find the peer.
func (l *lab) url() string {
	if l.front != "" {
		return "http://" + l.front + l.Path
	}
	return "http://" + l.addr + l.Path
}

// command is how a client starts the peer over stdio.
func (l *lab) command(ctx context.Context) *exec.Cmd {
	c := exec.CommandContext(ctx, l.program.Path, l.program.Args...)
	c.Env = append(os.Environ(), l.program.Env...)
	return c
}

// event is a line of the trial server.
type event struct {
	Event, ID string
	PID       int
	At        time.Time
	More      json.RawMessage
}

// read reads what the trial server has written so far.
func (l *lab) read() ([]event, error) {
	text, err := os.ReadFile(l.events)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []event
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<26)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: %w", lines.Text(), err)
		}
		all = append(all, e)
	}
	return all, lines.Err()
}

// count is how often an event has happened to the call of this name.
func count(all []event, what, id string) (n int) {
	for _, e := range all {
		if e.Event == what && e.ID == id {
			n++
		}
	}
	return n
}

// pause waits, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// oneLine is a message as it fits into a cell.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 160 {
		text = strings.ToValidUTF8(text[:160], "") + " …"
	}
	return text
}
