// Package proc runs programs as child processes for the demonstration, the benchmark and the
// end-to-end tests. No child outlives its parent: each leads a process group of its own, is ended
// by its process id, and on Linux and Windows is killed by the kernel if the parent dies first.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"taskgate/internal/procgroup"
)

// Command says what to run.
type Command struct {
	Name   string    // its name in messages
	Path   string    // the program
	Args   []string  // without the name
	Env    []string  // NAME=value, added to the parent's environment
	Dir    string    // where it runs; empty means the parent's directory
	Stdin  io.Reader // standard input; empty if nil
	Stdout io.Writer // gets a copy of standard output, if not nil
	Stderr io.Writer // gets a copy of standard error, if not nil
}

// Process is a running child.
type Process struct {
	// Name is the Command's.
	Name string

	cmd   *exec.Cmd
	group *procgroup.Group
	log   *tail
	done  chan struct{}
}

// Start runs the command.
func Start(c Command) (*Process, error) {
	p := &Process{Name: c.Name, log: &tail{}, done: make(chan struct{})}
	p.cmd = exec.Command(c.Path, c.Args...)
	p.cmd.Dir = c.Dir
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdin = c.Stdin
	p.cmd.Stdout = both(p.log, c.Stdout)
	p.cmd.Stderr = both(p.log, c.Stderr)
	// Grandchildren may hold the pipes open; WaitDelay ends the wait for them.
	p.cmd.WaitDelay = time.Second
	group, err := procgroup.Start(p.cmd)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	p.group = group
	go p.wait()
	return p, nil
}

func both(log, extra io.Writer) io.Writer {
	if extra == nil {
		return log
	}
	return io.MultiWriter(log, extra)
}

func (p *Process) wait() {
	_ = p.cmd.Wait() // the outcome is read from ProcessState
	close(p.done)
}

// Done is closed when the process has ended and its output is read.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID returns the process id, which is also that of its group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// ExitCode waits for the end and returns the exit code; -1 if a signal ended the process.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Output returns the end of the output so far, both streams together.
func (p *Process) Output() string { return p.log.String() }

// Signal sends a signal to the process alone.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Stop asks the process to end, kills its whole group after the patience at the latest, and waits
// for the end. A process that has ended may be stopped again. On Windows nobody can ask: it is killed at once.
func (p *Process) Stop(patience time.Duration) {
	select {
	case <-p.done:
	default:
		if p.Signal(syscall.SIGTERM) != nil {
			patience = 0
		}
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
	}
	p.Kill()
}

// Kill ends the process and its group at once, and waits for the end.
func (p *Process) Kill() {
	p.group.Kill()
	<-p.done
	p.group.Reap()
}

// The ports that FreeAddr chooses from. The kernel keeps off them: for outgoing connections, and listeners
// that ask for any port, Linux uses ports from 32768 on.
const (
	firstPort = 10000
	lastPort  = 32000
)

// reserved has what keeps the ports of FreeAddr from other processes.
var reserved struct {
	sync.Mutex
	ports []io.Closer
}

// FreeAddr returns a loopback address without a listener. Until this process ends, FreeAddr returns
// it only once on this machine, so that a program can be started on it, and started again.
func FreeAddr() (string, error) {
	var last error
	for range 1000 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort)))
		held, err := reserve(addr)
		if err != nil {
			last = err
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			last = errors.Join(err, held.Close())
			continue
		}
		reserved.Lock()
		reserved.ports = append(reserved.ports, held)
		reserved.Unlock()
		return addr, l.Close()
	}
	return "", fmt.Errorf("find a free port: %w", last)
}

// errEnded says that a process ended before it listened.
var errEnded = errors.New("ended before it was ready")

// WaitListening returns once the process accepts connections at the address. If the process or ctx
// ends before, the error includes its output.
func (p *Process) WaitListening(ctx context.Context, addr string) error {
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s: %w (exit code %d): %s", p.Name, errEnded, p.ExitCode(), p.Output())
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen on %s: %w: %s", p.Name, addr, ctx.Err(), p.Output())
		case <-retry.C:
		}
	}
}

// tailSize is how much of a child's output is kept.
const tailSize = 64 << 10

// tail keeps the end of the data that is written to it. It is safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write takes everything.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if extra := len(t.buf) - tailSize; extra > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[extra:])]
	}
	return len(b), nil
}

// String returns the kept data.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
