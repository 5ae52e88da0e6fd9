package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/shim"
	"taskgate/shim/shimtest"
)

// as calls a tool in a session.
func (w *world) as(s shim.Session, tool string, more ...any) (string, error) {
	w.t.Helper()
	r := shimtest.Tool(tool, "k", more...)
	r.Session = s
	reply, err := w.up.Call(w.t.Context(), r, &shimtest.Sink{})
	if err != nil || reply.Error != nil {
		return "", err
	}
	return shimtest.TextOf(w.t, reply), nil
}

// pidOf is the process that answers in a session.
func (w *world) pidOf(s shim.Session) string {
	w.t.Helper()
	pid, err := w.as(s, "pid")
	must(w.t, err)
	return pid
}

// A process of a legacy server is that of one session, and one of a modern server that of one
// principal.
func TestWhoSharesAProcess(t *testing.T) {
	asks := json.RawMessage(`{"elicitation":{}}`)
	callers := []shim.Session{
		{Key: "s1", Principal: "alice"},
		{Key: "s1", Principal: "alice", Capabilities: asks},
		{Key: "s2", Principal: "alice"},
		{Key: "s3", Principal: "bob"},
		{Key: "s4"},
		{Key: "s5"},
		{},
		{},
	}
	for child, want := range map[string]string{"plain": "abcdefgh", "modern": "aaabcccc"} {
		t.Run(child, func(t *testing.T) {
			w := start(t, child, Config{}, upstream.Config{})
			letters := map[string]byte{}
			var got strings.Builder
			for _, s := range callers {
				pid := w.pidOf(s)
				if letters[pid] == 0 {
					letters[pid] = byte('a' + len(letters))
				}
				got.WriteByte(letters[pid])
			}
			if got.String() != want {
				t.Errorf("got %s, want %s", got.String(), want)
			}
		})
	}
}

// TestEraIsFound: servers that die of an unknown first message, that do not answer it, and
// that refuse it are spoken to with initialize, in the same process if it lives.
func TestEraIsFound(t *testing.T) {
	for child, era := range map[string]string{"plain": "legacy", "fragile": "legacy", "silent": "legacy", "modern": "modern"} {
		t.Run(child, func(t *testing.T) {
			w := start(t, child, Config{}, upstream.Config{Shared: true, Silence: time.Second})
			srv, err := w.up.Describe(t.Context(), shim.Session{})
			if err != nil || srv.Era.String() != era {
				t.Fatalf("era %s, %v, want %s", srv.Era, err, era)
			}
			if got := w.text("echo", "text", "hallo"); got != "hallo" {
				t.Error(got)
			}
			shimtest.Eventually(t, func() bool { return len(offspring(t)) == 1 })
			if strings.Contains(w.logs.String(), "WARN") {
				t.Errorf("logged: %s", w.logs)
			}
		})
	}
	t.Run("broken", func(t *testing.T) {
		w := start(t, "broken", Config{}, upstream.Config{})
		wantEnd(t, w.fails("echo"), "closed", "TOKEN is not set")
	})
	t.Run("broken modern", func(t *testing.T) {
		w := start(t, "broken", Config{Modern: true}, upstream.Config{Era: upstream.EraModern})
		wantEnd(t, w.fails("echo"), "closed", "TOKEN is not set")
	})
}

// A server that takes long to begin is not taken for one that knows no server/discover, whichever
// era it is asked in first. It begins once.
func TestLateServer(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		w := start(t, "late", Config{OneUser: true}, upstream.Config{Silence: 100 * time.Millisecond})
		s := shim.Session{Key: "s", Legacy: legacy}
		srv, err := w.up.Describe(t.Context(), s)
		if err != nil || srv.Era.String() != "modern" {
			t.Errorf("legacy client %t: era %s, %v", legacy, srv.Era, err)
		}
		w.pidOf(s)
		if n := len(offspring(t)); n != 1 {
			t.Errorf("legacy client %t: %d processes", legacy, n)
		}
		if err := w.up.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A server that owns a lock can be used: it is started once, and again only when the process
// before has ended.
func TestServerThatOwnsALock(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		w := start(t, "locked", Config{OneUser: true, patience: endPatience, Env: []string{"LOCK=" + t.TempDir() + "/lock"}}, upstream.Config{})
		for i, key := range []string{"a", "b", "c"} {
			s := shim.Session{Key: key, Legacy: legacy}
			if srv, err := w.up.Describe(t.Context(), s); err != nil || srv.Era.String() != "legacy" {
				t.Errorf("legacy client %t: era %s, %v", legacy, srv.Era, err)
			}
			w.pidOf(s)
			w.up.EndSession(t.Context(), key)
			shimtest.Eventually(t, func() bool { return strings.Count(w.logs.String(), "line=ending") == i+1 })
		}
	}
}

// One more process than there may be takes the place of the one that was not used for longest. That
// the call is refused if all are used, TestLimits of cmd/taskgate shows.
func TestMaxProcesses(t *testing.T) {
	w := start(t, "plain", Config{MaxProcesses: 2}, upstream.Config{Era: upstream.EraLegacy})
	a, b := w.pidOf(shim.Session{Key: "a"}), w.pidOf(shim.Session{Key: "b"})
	w.pidOf(shim.Session{Key: "a"})
	w.pidOf(shim.Session{Key: "c"})
	gone(t, b)
	if w.pidOf(shim.Session{Key: "a"}) != a {
		t.Error("the process that was used last was ended")
	}
}

// The end of a session ends its process.
func TestEndOfSession(t *testing.T) {
	w := start(t, "plain", Config{}, upstream.Config{Era: upstream.EraLegacy})
	pid := w.pidOf(shim.Session{Key: "a"})
	w.up.EndSession(t.Context(), "a")
	gone(t, pid)
	pid = w.pidOf(shim.Session{}) // an anonymous call has one of its own
	gone(t, pid)
}

// A server that ends a subscription by a message is listened to again.
func TestCancelledSubscription(t *testing.T) {
	w := start(t, "modern", Config{}, upstream.Config{Era: upstream.EraModern})
	ctx, cancel := context.WithCancel(t.Context())
	heard, done := make(chan string, 16), make(chan error, 1)
	go func() {
		done <- w.up.Listen(ctx, shim.Session{}, shim.Filter{ToolsListChanged: true}, func(shim.Filter) {}, func(n shim.Notification) { heard <- n.Method })
	}()
	for range 2 { // the second one comes with another subscription
		if m := <-heard; m != "notifications/tools/list_changed" {
			t.Errorf("heard %s", m)
		}
	}
	cancel()
	<-done
}

// A modern call that its caller leaves is cancelled by a message: there is no connection that
// could be closed.
func TestModernCancellation(t *testing.T) {
	w := start(t, "modern", Config{}, upstream.Config{Era: upstream.EraModern})
	ctx, cancel := context.WithCancel(t.Context())
	began, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		r := shimtest.Tool("wait", "k")
		r.Progress = true
		_, err := w.up.Call(ctx, r, &shimtest.Sink{OnProgress: func(shim.Progress) { began <- struct{}{} }})
		done <- err
	}()
	<-began
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	shimtest.Eventually(t, func() bool { return strings.Contains(w.logs.String(), "cancelled") })
}

// A call cannot be resumed: another replica is told so at once, also with a checkpoint of
// another time.
func TestNothingIsResumed(t *testing.T) {
	w := start(t, "plain", Config{}, upstream.Config{Era: upstream.EraLegacy})
	var s shimtest.Sink
	must(t, errorOf(w.up.Call(t.Context(), shimtest.Tool("echo", "k"), &s)))
	all := append(s.Checkpoints(), json.RawMessage(`{"era":"legacy","version":"2025-11-25","session":"gone","generation":1,"id":"r2-1","last":"7"}`),
		json.RawMessage(`{"era":"legacy","version":"2025-11-25","session":"gone","generation":1,"id":"r2-1","task":{"id":"t"}}`))
	for _, cp := range all {
		if _, err := w.up.Resume(t.Context(), shimtest.Tool("echo", "k"), cp, &s); !errors.Is(err, shim.ErrNotResumable) {
			t.Errorf("checkpoint %s: %v", cp, err)
		}
	}
}
