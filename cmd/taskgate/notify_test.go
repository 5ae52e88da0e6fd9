package main

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

// supervised has this process tell a supervisor what it does. next waits for the next thing.
func supervised(t *testing.T) (next func() string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	supervisor, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	must(t, err)
	t.Cleanup(func() { _ = supervisor.Close() }) // and so the reader ends
	said := make(chan string, 1000)              // as many as the test can last
	go func() {
		defer close(said)
		for b := make([]byte, 4096); ; {
			n, err := supervisor.Read(b)
			if err != nil {
				return
			}
			said <- string(b[:n])
		}
	}()
	t.Setenv("NOTIFY_SOCKET", socket)
	return func() string {
		t.Helper()
		return wiretest.Await(t, said, "a notification")
	}
}

// TestReloadNotifies: the supervisor hears of a reload when it begins and when it is over.
func TestReloadNotifies(t *testing.T) {
	next := supervised(t)
	c := runChanging(t, time.Hour, upstreamsOf("{name: a, url: 'http://127.0.0.1:1/mcp'}"))
	c.takes("rate: 1\n" + upstreamsOf("{name: a, url: 'http://127.0.0.1:1/mcp'}"))
	for _, want := range []string{"READY=1", "RELOADING=1\nMONOTONIC_USEC=", "READY=1"} {
		if got := next(); !strings.HasPrefix(got, want) {
			t.Errorf("it said %q, not %q", got, want)
		}
	}
}

// TestWatchdogHearsNothing: a process that takes no connection any more is not said to be alive; once it
// does, it is.
func TestWatchdogHearsNothing(t *testing.T) {
	next := supervised(t)
	t.Setenv("WATCHDOG_USEC", "200000")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	s := &server{listener: l}
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { done <- s.notifyAlive(ctx) }()
	var gaveUp atomic.Bool
	go func() {
		hung, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, hung) // until the process gives up
		gaveUp.Store(true)
		_ = hung.Close()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	if got := next(); got != "WATCHDOG=1" || !gaveUp.Load() {
		t.Errorf("it said %q, while nothing was answered: %t", got, !gaveUp.Load())
	}
	stop()
	if err := wiretest.Await(t, done, "the end"); err != nil {
		t.Error(err)
	}
}

// TestNotifications: the supervisor hears when the addresses are bound, twice within each watchdog
// interval that the process lives, and before the drain how long that may take.
func TestNotifications(t *testing.T) {
	next := supervised(t)
	t.Setenv("WATCHDOG_USEC", "100000")
	r := runServer(t, "http://127.0.0.1:1/mcp", func(c *config.Config) { c.DrainDelay, c.DrainTimeout = 200*time.Millisecond, 2*time.Second })
	if got := next(); got != "READY=1" {
		t.Errorf("it said %q first", got)
	}
	for range 3 {
		if got := next(); got != "WATCHDOG=1" {
			t.Errorf("while it serves it said %q", got)
		}
	}
	r.stop()
	for {
		got := next()
		if got == "STOPPING=1\nEXTEND_TIMEOUT_USEC=12200000" {
			break
		}
		if got != "WATCHDOG=1" {
			t.Fatalf("when it stopped it said %q", got)
		}
	}
	if got := next(); got != "WATCHDOG=1" {
		t.Errorf("while it drains it said %q", got)
	}
	r.ends()
}
