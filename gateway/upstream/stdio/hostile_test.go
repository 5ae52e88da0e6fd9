package stdio

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest"
)

// A server that goes wrong during a call is ended; the call fails with a clear error, the next
// one is answered by another process, and nothing is left running.
func TestServersThatGoWrong(t *testing.T) {
	for _, c := range []struct{ tool, kind, want string }{
		{"die", "closed", "ended (exit status 3): out of cheese"},
		{"line", "too_large", "sent a message of more than 1048576 bytes"},
		{"nonsense", "protocol", "wrote what is no JSON-RPC message"},
		{"close output", "closed", "closed its output, and was ended: tired"},
	} {
		t.Run(c.tool, func(t *testing.T) {
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

// A server that does not read blocks nobody for ever: what cannot be written to it was
// certainly not begun.
func TestServerThatDoesNotRead(t *testing.T) {
	w := legacy(t, "stubborn", Config{ReadTimeout: 300 * time.Millisecond})
	pid := w.text("pid")
	done := make(chan error, 1)
	go func() {
		_, err := w.up.Call(t.Context(), shimtest.Tool("deaf", "k"), &shimtest.Sink{})
		done <- err
	}()
	large := strings.Repeat("x", 1<<20)
	var ue *shim.UpstreamError
	for ue == nil { // until the pipe is full
		r, err := w.up.Call(t.Context(), shimtest.Tool("echo", "k", "text", large), &shimtest.Sink{})
		if err == nil && r.Error == nil {
			continue // the other call was not written yet
		}
		ue, _ = err.(*shim.UpstreamError)
		if ue == nil {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	wantEnd(t, ue, "timeout", "did not read its input for 300ms")
	if !ue.Unsent {
		t.Error("the call counts as sent")
	}
	if err := <-done; err == nil || err.(*shim.UpstreamError).Unsent {
		t.Errorf("the call before: %v", err)
	}
	gone(t, pid)
	w.text("pid")
}

// A server that closes its input and goes on is ended when something is sent to it.
func TestServerThatClosesItsInput(t *testing.T) {
	w := legacy(t, "stubborn", Config{})
	pid := w.text("pid")
	w.text("close input")
	shimtest.Eventually(t, func() bool {
		_, err := w.call("echo")
		return err != nil
	})
	gone(t, pid)
	w.text("pid")
}

// What a program prints before it serves, and some nonsense, is left out.
func TestNonsenseIsLeftOut(t *testing.T) {
	w := legacy(t, "greeting", Config{})
	if got := w.text("some nonsense"); got != "ok" {
		t.Error(got)
	}
	if !strings.Contains(w.logs.String(), "no JSON-RPC message") {
		t.Errorf("not logged: %s", w.logs)
	}
}

// A flood on the standard error is read, and hardly logged.
func TestFloodOfErrors(t *testing.T) {
	w := legacy(t, "plain", Config{})
	if got := w.text("errors"); got != "ok" {
		t.Error(got)
	}
	if n := strings.Count(w.logs.String(), "\n"); n > 3*logLines {
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
