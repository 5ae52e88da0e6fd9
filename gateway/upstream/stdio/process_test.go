package stdio

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/duplex"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/procgroup"
	"taskgate/shim"
	"taskgate/shim/shimtest"
)

// A process is ended in order: one that does not end when its input is closed, nor by SIGTERM,
// is killed; and at once when there is no time left.
func TestClose(t *testing.T) {
	for child, most := range map[string]time.Duration{"plain": endPatience, "stubborn": time.Minute} {
		t.Run(child, func(t *testing.T) {
			w := legacy(t, child, Config{patience: endPatience})
			pid := w.text("pid")
			began := time.Now()
			check(t, w.up.Close(t.Context()))
			if d := time.Since(began); d > most {
				t.Errorf("took %s", d)
			}
			if runs(t, pid) {
				t.Error("the process runs")
			}
			if ue := w.fails("echo"); !strings.Contains(ue.Message, "shutting down") {
				t.Error(ue)
			}
		})
	}
	t.Run("in a hurry", func(t *testing.T) {
		w := legacy(t, "stubborn", Config{patience: time.Hour})
		pid := w.text("pid")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_ = w.tr.Close(ctx)
		if runs(t, pid) {
			t.Error("the process runs")
		}
	})
}

// A process whose input the gateway has closed keeps the time that it has to end, also where a cancellation
// comes too late to be written.
func TestLateWordDoesNotKill(t *testing.T) {
	exe, err := os.Executable()
	must(t, err)
	c := Config{Command: exe, Env: []string{childVar + "=stubborn"}, Logger: slog.New(slog.DiscardHandler), patience: time.Hour}
	c = c.withDefaults()
	var running sync.WaitGroup
	p, err := startChild(&c, &running, make(chan struct{}))
	must(t, err)
	p.Stop()
	shimtest.Eventually(t, func() bool {
		return errors.Is(p.Send(t.Context(), &transport.Outgoing{Body: []byte("{}"), Sender: transport.Nobody{}}, nil), duplex.ErrOver)
	})
	if why := p.broken.Load(); why != nil {
		t.Errorf("it was killed: %+v", why)
	}
	p.signal((*procgroup.Group).Kill)
	p.Close()
	running.Wait()
}

// What a process has started ends with it.
func TestGroupEndsWithProcess(t *testing.T) {
	w := legacy(t, "plain", Config{})
	pid, grandchild := w.text("pid"), w.text("fork")
	if !runs(t, grandchild) {
		t.Fatal("the process has started nothing")
	}
	kill(t, pid)
	gone(t, grandchild)
	gone(t, pid)
	shimtest.Eventually(t, func() bool { return len(offspring(t)) == 0 })
}

// A process that nobody uses is ended, and started again when it is needed.
func TestIdleProcess(t *testing.T) {
	w := legacy(t, "plain", Config{Idle: 50 * time.Millisecond})
	pid := w.text("pid")
	gone(t, pid)
	if next := w.text("pid"); next == pid {
		t.Error("the same process")
	}
}

// To listen starts no process: a program that has crashed is started by the next request, and is
// listened to again.
func TestListeningStartsNothing(t *testing.T) {
	w := start(t, "plain", Config{}, upstream.Config{Era: upstream.EraLegacy})
	s := shim.Session{Key: "a", Legacy: true, Shared: true}
	pid := w.pidOf(s)
	ctx, cancel := context.WithCancel(t.Context())
	heard, ready, done := make(chan string, 16), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		_ = w.up.Listen(ctx, s, shim.Filter{Log: true, ToolsListChanged: true}, func(shim.Filter) { close(ready) }, func(n shim.Notification) { heard <- n.Method })
	}()
	<-ready
	kill(t, pid)
	gone(t, pid)
	<-time.After(2 * time.Second)
	if all := offspring(t); len(all) != 0 {
		t.Errorf("processes %v were started", all)
	}
	w.pidOf(s)
	shimtest.Eventually(t, func() bool { // the gap is told, and then what the server says
		check(t, errorOf(w.as(s, "announce")))
		return len(heard) > 1
	})
	cancel()
	<-done
}

// A program that cannot run is started again after a while only, and the error says what it
// wrote.
func TestBrokenProgram(t *testing.T) {
	w := legacy(t, "broken", Config{})
	wantEnd(t, w.fails("echo"), "closed", "ended (exit status 3): reading settings /  [31mTOKEN is not set")
	ue := w.fails("echo")
	wantEnd(t, ue, "unreachable", "TOKEN is not set (the next attempt can be made in ")
	if !ue.Unsent || ue.RetryAfterMs <= 0 {
		t.Errorf("%+v", ue)
	}
	if !strings.Contains(w.logs.String(), "TOKEN is not set") {
		t.Errorf("not logged: %s", w.logs)
	}
}

// A program that ends with success after each answer is started again at once: it has not crashed. It gave up
// every second call for a pause.
func TestProgramForOneCall(t *testing.T) {
	w := legacy(t, "plain", Config{})
	for n := range 6 {
		if got := w.text("once"); got != "ok" {
			t.Errorf("answered %q", got)
		}
		shimtest.Eventually(t, func() bool {
			return len(offspring(t)) == 0 && strings.Count(w.logs.String(), "the process of the server has ended") == n+1
		})
	}
}

// Whether it is seen first that nothing can be written to a program that ends, or that it has ended, the error
// says how that was.
func TestEndThatIsSeenByWriting(t *testing.T) {
	for how, want := range map[string]string{"exit status 4": "ended (exit status 4)", "signal: killed": "closed its input, and was ended"} {
		p := &child{how: how, ended: make(chan struct{}), reaped: true}
		_ = p.written(nil, errors.New("broken pipe"))
		close(p.ended)
		if got := p.Fate(io.EOF).How; got != want {
			t.Errorf("%s: %s, want %s", how, got, want)
		}
	}
}

func TestProgramThatIsNotThere(t *testing.T) {
	for _, c := range []struct {
		config         Config
		reached, wrong string
	}{
		{Config{Command: "no-such-program"}, "command no-such-program: ", errNotInPath.Error()},
		{Config{Command: "/no/such/program"}, "command /no/such/program: ", notThere},
		{Config{Command: os.Args[0], Dir: "/no/such/folder"}, "", "cwd is no folder"},
	} {
		tr := New(c.config)
		if err := tr.Reach(t.Context()); err == nil || !strings.HasPrefix(err.Error(), c.reached) || !strings.HasSuffix(err.Error(), c.wrong) {
			t.Errorf("Reach: %v, want %s…%s", err, c.reached, c.wrong)
		}
		up, err := upstream.New(upstream.Config{Transport: tr})
		must(t, err)
		_, err = up.Call(t.Context(), shimtest.Tool("echo", "k"), &shimtest.Sink{})
		ue, ok := err.(*shim.UpstreamError)
		if !ok || ue.Kind != "unreachable" || !ue.Unsent || ue.Message != "the process of the server cannot be started: "+c.wrong || !strings.Contains(ue.Error(), c.config.Command) {
			t.Errorf("Call: %v", err)
		}
		check(t, up.Close(t.Context()))
	}
	check(t, New(Config{Command: os.Args[0]}).Reach(t.Context()))
}

// A program gets the environment and the directory of its configuration, and nothing else of
// the gateway's.
func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET_OF_THE_GATEWAY", "x")
	dir, err := os.MkdirTemp("", "stdio")
	must(t, err)
	t.Cleanup(func() { os.Remove(dir) })
	w := legacy(t, "plain", Config{Env: []string{"A=b"}, Dir: dir})
	want := "A=b " + childVar + "=plain"
	switch got := w.text("environment"); {
	case runtime.GOOS == "windows": // it adds what no program there goes without, such as SystemRoot
		if !strings.HasPrefix(got, want) || strings.Contains(got, "SECRET") {
			t.Errorf("environment %q", got)
		}
	case got != want:
		t.Errorf("environment %q", got)
	}
	if got := w.text("directory"); got != dir {
		t.Errorf("directory %q, want %q", got, dir)
	}
}

// A process whose handshake fails is ended: a second one beside it could not have the same lock.
func TestFailedHandshakeEndsItsProcess(t *testing.T) {
	for child, want := range map[string]string{"other world": "protocol version 1999-01-01", "not a number": "no JSON-RPC message"} {
		t.Run(child, func(t *testing.T) {
			w := legacy(t, child, Config{OneUser: true})
			wantEnd(t, w.fails("echo"), "protocol", want)
			shimtest.Eventually(t, func() bool { return len(offspring(t)) == 0 })
		})
	}
}
