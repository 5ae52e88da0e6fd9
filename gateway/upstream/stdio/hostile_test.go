package stdio

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/shim/shimtest"
)

// A server that goes wrong during a call is ended; the call fails with a clear error, the next
// one is answered by another process, and nothing is left running.
func TestServersThatGoWrong(t *testing.T) {
	for _, c := range []struct{ tool, kind, want string }{
		{"die", "closed", "ended (exit status 3): out of cheese"},
		{"be killed", "closed", "the process of the server ended (signal: killed)"},
		{"line", "too_large", "sent a message of more than 1048576 bytes"},
		{"close output", "closed", "closed its output, and was ended: tired"},
	} {
		t.Run(c.tool, func(t *testing.T) {
			if c.tool == "close output" {
				needClosing(t)
			}
			w := legacy(t, "stubborn", Config{MaxMessage: 1 << 20})
			pid := w.text("pid")
			ue := w.fails(c.tool)
			wantEnd(t, ue, c.kind, c.want)
			if ue.Unsent {
				t.Error("the call counts as not sent")
			}
			if next := w.text("pid"); next == pid {
				t.Error("the process was not replaced")
			}
			gone(t, pid)
			if !strings.Contains(w.logs.String(), "the process of the server has ended") {
				t.Errorf("not logged: %s", w.logs)
			}
		})
	}
}

// counter counts the messages that were written.
type counter struct{ reached *atomic.Int64 }

func (c counter) NoteReached()       { c.reached.Add(1) }
func (counter) NoteHeard()           {}
func (counter) NoteWaiting()         {}
func (counter) TakeRoom(int64) error { return nil }

// A synchronous server does not read while its tool runs, for however long. What is sent to it
// meanwhile waits, and arrives whole, in order; a caller who leaves takes nothing of it back. That none of the calls
// fails at a real process shows TestTransportSuite, Deaf.
func TestDeafServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const deaf = time.Hour
		reader, in := net.Pipe()
		p := &child{in: in, turn: make(chan struct{}, 1), ended: make(chan struct{}), reaped: true}
		var reached atomic.Int64
		var arrived []string
		send := func(ctx context.Context, line string) error {
			return p.Send(ctx, &transport.Outgoing{Body: []byte(line), Sender: counter{&reached}}, nil)
		}
		impatient, leave := context.WithTimeout(t.Context(), time.Minute)
		defer leave()
		var all sync.WaitGroup
		for i, c := range []struct {
			ctx  context.Context
			line string
			want error
		}{
			{impatient, "begun, and left", context.DeadlineExceeded},
			{t.Context(), "waits", nil},
			{impatient, "never begun", context.DeadlineExceeded},
			{t.Context(), "waits as well", nil},
		} {
			all.Go(func() {
				<-time.After(time.Duration(i) * time.Second)
				if err := send(c.ctx, c.line); err != c.want {
					t.Errorf("%s: %v", c.line, err)
				}
			})
		}
		<-time.After(deaf)
		if p.broken.Load() != nil || reached.Load() != 1 {
			t.Errorf("after %s: ended for %+v, reached by %d", deaf, p.broken.Load(), reached.Load())
		}
		all.Go(func() {
			for lines := bufio.NewScanner(reader); lines.Scan(); {
				arrived = append(arrived, lines.Text())
			}
		})
		synctest.Wait()
		in.Close()
		all.Wait()
		if got := strings.Join(arrived, ", "); got != "begun, and left, waits, waits as well" {
			t.Errorf("arrived: %s", got)
		}
	})
}

// So it is with a real process, and with lines that no pipe can hold: none of its calls fails.
func TestServerThatDoesNotRead(t *testing.T) {
	w := legacy(t, "stubborn", Config{})
	pid := w.text("pid")
	const deaf = time.Second
	done := make(chan error, 1)
	go func() {
		_, err := w.up.Call(t.Context(), shimtest.Tool("deaf", "k", "n", int(deaf.Milliseconds())), &shimtest.Sink{})
		done <- err
	}()
	large := strings.Repeat("x", 1<<20)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			r, err := w.up.Call(t.Context(), shimtest.Tool("echo", "k", "text", large), &shimtest.Sink{})
			if err != nil || shimtest.TextOf(t, r) != large {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	all.Wait()
	if err := <-done; err != nil {
		t.Errorf("the call before: %v", err)
	}
	// A caller who leaves while its line is written takes nothing of it back.
	go func() { _, _ = w.call("deaf", "n", 500) }()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, _ = w.up.Call(ctx, shimtest.Tool("echo", "k", "text", large), &shimtest.Sink{})
	if got := w.text("pid"); got != pid {
		t.Error("the process was replaced")
	}
}

// A server that closes its input and goes on is ended when something is sent to it. The call goes to another one: it was
// never read.
func TestServerThatClosesItsInput(t *testing.T) {
	needClosing(t)
	w := legacy(t, "stubborn", Config{})
	pid := w.text("pid")
	w.text("close input")
	shimtest.Eventually(t, func() bool { return w.text("pid") != pid })
	gone(t, pid)
}

// What a program prints before it serves, and nonsense however much, is left out and hardly logged.
func TestNonsenseIsLeftOut(t *testing.T) {
	w := legacy(t, "greeting", Config{})
	pid := w.text("pid")
	for range 2 {
		if got := w.text("nonsense"); got != "ok" {
			t.Error(got)
		}
	}
	if got := w.text("pid"); got != pid {
		t.Error("the process was replaced")
	}
	if n := strings.Count(w.logs.String(), "no JSON-RPC message"); n == 0 || n > 3 {
		t.Errorf("logged %d times: %s", n, w.logs)
	}
}

// A flood on the standard error is read, and hardly logged.
func TestFloodOfErrors(t *testing.T) {
	w := legacy(t, "plain", Config{})
	if got := w.text("errors"); got != "ok" {
		t.Error(got)
	}
	if n := strings.Count(w.logs.String(), "\n"); n > 300 {
		t.Errorf("%d lines were logged", n)
	}
}

// 500 calls at a time over one process: none is lost or mixed up.
func TestManyCalls(t *testing.T) {
	w := legacy(t, "plain", Config{})
	pid := w.text("pid")
	var all sync.WaitGroup
	for i := range 500 {
		all.Go(func() {
			text := fmt.Sprint(i, strings.Repeat("x", i*7))
			r, err := w.call("echo", "text", text)
			if err != nil || r.Error != nil || shimtest.TextOf(t, r) != text {
				t.Errorf("call %d: %v, %+v", i, err, r)
			}
		})
	}
	all.Wait()
	if got := w.text("pid"); got != pid {
		t.Error("the process was replaced")
	}
}

// needClosing skips a test in which a process closes its input or output and goes on: under wine its console holds them
// open.
func needClosing(t *testing.T) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("wine holds the streams of a process open")
	}
}
