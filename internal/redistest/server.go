// Package redistest runs real redis-servers for tests, on free ports of the
// loopback interface, alone or as a cluster, and puts a faulty network in front
// of them. Everything ends with the test that started it.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"taskgate/internal/proc"
)

// TB is what this package needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(func())
	TempDir() string
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// patience is how long a server may take to be ready.
const patience = 20 * time.Second

// Server is a redis-server process.
type Server struct {
	// Addr is where it listens; it stays the same over a restart.
	Addr string

	t       TB
	binary  string
	dir     string
	first   []string // arguments before all others, of which Redis wants the first to be a file
	args    []string
	process *proc.Process
}

// Start runs a redis-server until the test ends, with further arguments for it, as
// in "--appendonly", "yes". Without one in PATH the test is skipped, but in CI it
// fails there. With -short no process is started: the test is skipped.
func Start(t TB, args ...string) *Server {
	t.Helper()
	return run(t, &Server{t: t, binary: find(t), dir: t.TempDir(), args: args})
}

// run starts a server on a port of its own.
func run(t TB, s *Server) *Server {
	t.Helper()
	t.Cleanup(func() { s.Kill() })
	var err error
	for range 5 { // somebody else may take the port that was free
		if s.Addr, err = proc.FreeAddr(); err != nil {
			t.Fatalf("%v", err)
		}
		if err = s.start(); err == nil {
			return s
		}
	}
	t.Fatalf("%v", err)
	return nil
}

// find looks for the program.
func find(t TB) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short: a redis-server is a process")
	}
	binary, err := exec.LookPath("redis-server")
	if err != nil && os.Getenv("CI") != "" {
		t.Fatalf("CI needs a redis-server in PATH: %v", err)
	}
	if err != nil {
		t.Skipf("no redis-server in PATH: %v", err)
	}
	return binary
}

// URL is the store URL of the server.
func (s *Server) URL() string { return "redis://" + s.Addr }

// start runs the process and waits until it has loaded its data.
func (s *Server) start() error {
	if err := s.launch(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := s.client()
	defer c.Close()
	var pid string
	err := poll(ctx, func() error {
		text, err := c.Info(ctx, "server").Result()
		if err != nil && strings.HasPrefix(err.Error(), "NOAUTH") {
			return nil
		}
		_, rest, _ := strings.Cut(text, "process_id:")
		pid, _, _ = strings.Cut(rest, "\r\n")
		return err
	})
	if err == nil && pid != "" && pid != strconv.Itoa(s.process.PID()) {
		s.process.Kill()
		return fmt.Errorf("another server listens on %s", s.Addr) // it was quicker
	}
	return err
}

// launch runs the process and waits until it listens.
func (s *Server) launch(more ...string) error {
	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	args := append(slices.Clone(s.first), "--bind", "127.0.0.1", "--port", port, "--dir", s.dir)
	if s.first == nil { // a sentinel knows no such settings
		args = append(args, "--save", "", "--maxmemory-policy", "noeviction")
	}
	args = slices.Concat(args, s.args, more)
	if s.process, err = proc.Start(proc.Command{Name: "redis-server", Path: s.binary, Args: args}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.process.WaitListening(ctx, s.Addr)
}

// client connects to the server.
func (s *Server) client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr, Protocol: 2, DisableIdentity: true})
}

// Do runs one command and returns its reply.
func (s *Server) Do(args ...any) any {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := s.client()
	defer c.Close()
	v, err := c.Do(ctx, args...).Result()
	if err != nil && err != redis.Nil {
		s.t.Fatalf("redis %v: %v", args, err)
	}
	return v
}

// Keys lists the keys that match a pattern.
func (s *Server) Keys(pattern string) []string {
	s.t.Helper()
	var keys []string
	for _, k := range s.Do("keys", pattern).([]any) {
		keys = append(keys, k.(string))
	}
	return keys
}

// Kill ends the server at once, as a crash does.
func (s *Server) Kill() {
	if s.process != nil {
		s.process.Kill()
	}
}

// Stop ends the server as an operator does.
func (s *Server) Stop() {
	if s.process != nil {
		s.process.Stop(patience)
	}
}

// Restart runs the server again, with the data that it finds on disk.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatalf("%v", err)
	}
}

// poll tries until there is no error or ctx ends.
func poll(ctx context.Context, try func() error) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}
