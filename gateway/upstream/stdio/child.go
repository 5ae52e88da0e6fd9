package stdio

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/duplex"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/procgroup"
	"taskgate/shim"
)

const (
	// endPatience is how long a process may take to end after its standard input was closed, and again after
	// SIGTERM (protocol.md 5.3). Twice that is below the time that the gateway has left when it stops.
	endPatience = 2 * time.Second
	// drainPatience is how long the output of a process is still read after its end, and how long a process
	// that has closed its output may take to end.
	drainPatience = time.Second
)

// chunk is how much is read of a process at a time.
const chunk = 64 << 10

// errNotInPath is what is wrong with a command that is found nowhere.
var errNotInPath = errors.New("its program is not in the PATH of the gateway; configure its whole path, and the PATH that it needs itself in env")

// statusNotFound is how a shell or env ends that finds no program.
const statusNotFound = "exit status 127"

var errTooLarge = errors.New("the message is too large")

// child is a server that runs as a child process: a duplex.Link over its standard streams. running counts its
// goroutines, and its owner waits for that.
type child struct {
	cfg     *Config
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *os.File
	lines   *bufio.Reader
	errs    stderr
	running *sync.WaitGroup
	hurry   <-chan struct{} // closed when the time to end in order is over

	turn     chan struct{} // a place for the goroutine that writes
	group    *procgroup.Group
	how      string        // the process ended; set before ended is closed
	ended    chan struct{} // closed when the process is over, and its standard error read
	stopping sync.Once
	broken   atomic.Pointer[duplex.Exit] // why it was killed

	mu     sync.Mutex
	reaped bool // its pid may belong to another process
}

// find returns the path of the program, or says what is wrong with the command.
func (c *Config) find() (string, error) {
	if c.Dir != "" {
		if info, err := os.Stat(c.Dir); err != nil || !info.IsDir() {
			return "", errors.New("cwd is no folder")
		}
	}
	name := c.Command
	isPath := filepath.Base(name) != name
	if isPath && !filepath.IsAbs(name) {
		name = filepath.Join(c.Dir, name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		switch err = errors.Unwrap(err); {
		case !errors.Is(err, exec.ErrNotFound):
		case isPath: // so Windows says
			err = fs.ErrNotExist
		default:
			err = errNotInPath
		}
		return "", fmt.Errorf("command %s: %w", c.Command, err)
	}
	return filepath.Abs(path)
}

// start runs the command.
func (c *Config) start(ctx context.Context, _ *transport.Outgoing, running *sync.WaitGroup, hurry <-chan struct{}) (duplex.Link, error) {
	if c.After != nil {
		select {
		case <-c.After:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	p, err := startChild(c, running, hurry)
	if err != nil {
		for cause := errors.Unwrap(err); cause != nil; cause = errors.Unwrap(err) {
			err = cause // paths are for the log alone
		}
		return nil, &duplex.Exit{Kind: shim.KindUnreachable, How: "cannot be started: " + err.Error(), Err: fmt.Errorf("command %s", c.Command)}
	}
	return p, nil
}

func startChild(c *Config, running *sync.WaitGroup, hurry <-chan struct{}) (*child, error) {
	path, err := c.find()
	if err != nil {
		return nil, err
	}
	p := &child{cfg: c, running: running, hurry: hurry, turn: make(chan struct{}, 1), ended: make(chan struct{})}
	p.cmd = &exec.Cmd{Path: path, Args: append([]string{c.Command}, c.Args...), Env: c.Env, Dir: c.Dir}
	errs, err := p.run()
	if err != nil {
		return nil, err
	}
	p.lines = bufio.NewReaderSize(p.out, chunk)
	p.errs.log = c.Logger.With("pid", p.cmd.Process.Pid)
	p.errs.done = make(chan struct{})
	running.Go(func() { p.errs.read(errs) })
	running.Go(func() { p.watch(errs) })
	return p, nil
}

// run starts the process with a pipe for each of its standard streams, and returns that of its standard error.
func (p *child) run() (*os.File, error) {
	in, err1 := p.cmd.StdinPipe()
	out, err2 := p.cmd.StdoutPipe()
	errs, err3 := p.cmd.StderrPipe()
	if err := cmp.Or(err1, err2, err3); err != nil {
		return nil, err // the pipes that there are end with their files
	}
	group, err := procgroup.Start(p.cmd)
	if err != nil {
		return nil, err
	}
	p.group = group
	p.in, p.out = in, out.(*os.File)
	return errs.(*os.File), nil
}

// watch waits for the end of the process, and kills the rest of its group.
func (p *child) watch(errs *os.File) {
	p.how = p.group.Wait()
	p.mu.Lock()
	p.reaped = true
	p.group.Kill()
	p.mu.Unlock()
	p.group.Reap()
	p.in.Close()
	p.turn <- struct{}{} // for good: the line under way is over, and no other is written
	// A process that has left the group may hold the other ends open.
	soon := time.Now().Add(drainPatience)
	_ = p.out.SetReadDeadline(soon)
	_ = errs.SetReadDeadline(soon)
	<-p.errs.done
	close(p.ended)
}

// signal has the group end in some way while the process exists.
func (p *child) signal(end func(*procgroup.Group)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		end(p.group)
	}
}

// Send writes one message as a line. A server that works on something else may not read for long. Then ctx
// bounds the wait, and a line that has begun is completed after its caller has left. If Send fails with
// duplex.ErrOver, the server has not got the message.
func (p *child) Send(ctx context.Context, m *transport.Outgoing, _ <-chan struct{}) error {
	select {
	case p.turn <- struct{}{}:
	case <-p.ended:
		return duplex.ErrOver
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	jsonrpc.OneLine(m.Body)
	line := append(m.Body, '\n')
	done := make(chan error, 1)
	go func() { // watch waits for it
		_, err := p.in.Write(line)
		<-p.turn
		done <- err
	}()
	select {
	case err := <-done:
		return p.written(m, err)
	case <-ctx.Done():
		m.NoteReached()
		return context.Cause(ctx)
	}
}

// written judges how a line was written. After an error a part of it may be there. A process whose input the
// gateway itself has closed keeps its time to end.
func (p *child) written(m *transport.Outgoing, err error) error {
	switch {
	case err == nil:
		m.NoteReached() // only now: a cancellation must not overtake its request
		return nil
	case errors.Is(err, os.ErrClosed):
		return duplex.ErrOver
	}
	p.kill(&duplex.Exit{Kind: shim.KindClosed, How: "closed its input, and was ended"})
	return duplex.ErrOver
}

// Receive reads one line, which belongs to the caller.
func (p *child) Receive() ([]byte, error) {
	var line []byte
	for {
		part, err := p.lines.ReadSlice('\n')
		if int64(len(line)+len(part)) > p.cfg.MaxMessage+2 {
			return nil, errTooLarge
		}
		line = append(line, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, err // the rest of a line is no message
		default:
			return bytes.TrimRight(line, "\r\n"), nil
		}
	}
}

// kill ends the process at once, and notes why.
func (p *child) kill(why *duplex.Exit) {
	select {
	case <-p.ended:
		return
	default:
	}
	p.broken.CompareAndSwap(nil, why)
	p.signal((*procgroup.Group).Kill)
}

// Fate says why nothing more is received.
func (p *child) Fate(err error) *duplex.Exit {
	over := p.wait(drainPatience)
	e := duplex.Exit{Kind: shim.KindClosed, How: "closed its output, and was ended"}
	switch broken := p.broken.Load(); {
	case errors.Is(err, errTooLarge):
		e = duplex.Exit{Kind: shim.KindTooLarge, How: fmt.Sprintf("sent a message of more than %d bytes, and was ended", p.cfg.MaxMessage)}
	case broken != nil && !(over && strings.HasPrefix(p.how, "exit")): // an exit means that it was ending by itself
		e = *broken
	case over:
		// A program that ends with success after its work has not crashed: some are made for one call, as
		// mcp-server-fetch behind some runners is.
		e.How, e.Usual = "ended ("+p.how+")", p.how == "exit status 0"
		if p.how == statusNotFound {
			e.How += "; a program that it starts is not in its PATH, which env gives it"
		}
	}
	e.Said = p.errs.last()
	return &e
}

// wait waits until the process is over, for at most d, and reports whether it is.
func (p *child) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
		return false
	case <-p.hurry:
		return false
	}
}

// Stop begins to end the process, in order (protocol.md 5.3).
func (p *child) Stop() {
	p.stopping.Do(func() {
		p.running.Go(func() {
			p.in.Close()
			if p.wait(p.cfg.patience) {
				return
			}
			p.signal((*procgroup.Group).Terminate)
			if !p.wait(p.cfg.patience) {
				p.signal((*procgroup.Group).Kill)
			}
		})
	})
}

// Close waits for the end of a process after Stop.
func (p *child) Close() {
	<-p.ended
	p.out.Close()
}
