package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"taskgate/shim"
)

// A client with tasks goes on blocking while none can be made (design.md 0.13).
func TestStoreDownAtCreation(t *testing.T) {
	bubbleOf(t, "answered meanwhile", func(t *testing.T, w *world) {
		for name, c := range map[string]struct {
			mode shim.Mode
			call shim.Call
		}{"auto": {shim.Auto, call()}, "always": {shim.Always, call()}, "in words": {shim.Auto, told()}} {
			u := takes(time.Minute)
			s := w.gateway("a-"+name, u, policy(c.mode))
			w.store.down.Store(true)
			got, err := s.Call(t.Context(), c.call)
			w.store.down.Store(false)
			if err != nil || string(got.Reply.Result) != result || u.calls.Load() != 1 {
				t.Errorf("%s: %+v, %v, sent %d times", name, got, err, u.calls.Load())
			}
		}
	})
	bubbleOf(t, "back in time", func(t *testing.T, w *world) {
		s := w.gateway("a", takes(time.Minute), policy(shim.Auto))
		w.store.down.Store(true)
		time.AfterFunc(9500*time.Millisecond, func() { w.store.down.Store(false) })
		start := time.Now()
		task := begin(t, s, call())
		if d := time.Since(start); d < 9500*time.Millisecond || d > 12*time.Second {
			t.Errorf("the handle came after %v", d)
		}
		pass(time.Minute)
		wantStatus(t, read(t, s, task.ID), shim.Completed)
	})
	bubbleOf(t, "insisting", func(t *testing.T, w *world) {
		w.store.down.Store(true)
		for name, c := range map[string]struct {
			mode shim.Mode
			call shim.Call
		}{"owner": {shim.Required, call()}, "owner, told in words": {shim.Required, told()}, "client": {shim.Auto, demanded(0)}} {
			u := takes(time.Second)
			s := w.gateway("a-"+name, u, policy(c.mode))
			if _, err := s.Call(t.Context(), c.call); !errors.Is(err, shim.ErrUnavailable) {
				t.Errorf("%s: %v", name, err)
			}
			pass(10 * time.Second)
			if n := u.calls.Load(); n != 0 {
				t.Errorf("%s: sent %d times", name, n)
			}
		}
		w.store.down.Store(false)
	})
}

// A creation whose reply is lost leaves no second record, and none that nobody
// was told of.
func TestLostReplyOfCreate(t *testing.T) {
	bubbleOf(t, "tried again", func(t *testing.T, w *world) {
		s := w.gateway("a", takes(time.Minute), policy(shim.Auto))
		w.store.deaf.Store(true)
		time.AfterFunc(7500*time.Millisecond, func() { w.store.deaf.Store(false) })
		c := call()
		c.Principal = shim.Principal{Subject: "ann"}
		begin(t, s, c)
		tasks, _, err := s.List(t.Context(), c.Principal, "up", "")
		if err != nil || len(tasks) != 1 || w.store.creates.Load() < 2 {
			t.Errorf("%d tasks after %d attempts, %v", len(tasks), w.store.creates.Load(), err)
		}
	})
	bubbleOf(t, "given up", func(t *testing.T, w *world) {
		s := w.gateway("a", takes(7*time.Second), policy(shim.Auto))
		w.store.deaf.Store(true)
		c := call()
		c.Principal = shim.Principal{Subject: "ann"}
		if got, err := s.Call(t.Context(), c); err != nil || got.Task != nil {
			t.Fatalf("%+v, %v", got, err)
		}
		w.store.deaf.Store(false)
		pass(500 * time.Millisecond)
		tasks, _, err := s.List(t.Context(), c.Principal, "up", "")
		if err != nil || len(tasks) != 1 || tasks[0].StatusMessage != "the call has ended without a task" {
			t.Errorf("%+v, %v: want one that says why it was cancelled", tasks, err) // its client has an answer
		}
		pass(time.Minute)
		if tasks, _, err := s.List(t.Context(), c.Principal, "up", ""); err != nil || len(tasks) != 0 {
			t.Errorf("%+v, %v: want no task left", tasks, err)
		}
	})
}

// A new task is written once, with all that is known of its call. Only a creation whose reply was lost may have stored less:
// then the rest follows.
func TestNewTaskIsWrittenOnce(t *testing.T) {
	for name, lost := range map[string]bool{"heard of": false, "reply lost": true} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			p := policy(shim.Auto)
			if lost {
				p = policy(shim.Always) // the first attempt is made before the call is sent
				w.store.deaf.Store(true)
				time.AfterFunc(7500*time.Millisecond, func() { w.store.deaf.Store(false) })
			}
			s := w.gateway("a", takes(time.Hour), p)
			task := begin(t, s, call())
			before := w.store.ops.Load() + w.store.appends.Load()
			pass(10 * time.Second)
			if n := w.store.ops.Load() + w.store.appends.Load() - before; n != 0 && !lost {
				t.Errorf("the store was used %d times more", n)
			}
			got, err := w.store.Get(t.Context(), task.ID, shim.WithRun)
			if err != nil || string(got.Checkpoint) != `{"sent":true}` {
				t.Errorf("the record has the checkpoint %s, %v", got.Checkpoint, err)
			}
		})
	}
}

// Sent is recorded before the first byte goes out: a call whose record cannot be
// written is not sent.
func TestNotSentBeforeItIsRecorded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		sent := make(chan time.Time, 1)
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			w.store.down.Store(true)
			time.AfterFunc(30*time.Second, func() { w.store.down.Store(false) })
			if err := s.Checkpoint(json.RawMessage(`{}`))(ctx); err != nil {
				return shim.Reply{}, err
			}
			sent <- time.Now()
			return after(ctx, time.Second)
		}}
		s := w.gateway("a", u, policy(shim.Always))
		start := time.Now()
		task := begin(t, s, call())
		pass(time.Minute)
		if d := (<-sent).Sub(start); d < 30*time.Second {
			t.Errorf("sent after %v, while nothing could be recorded", d)
		}
		wantStatus(t, read(t, s, task.ID), shim.Completed)
	})
}

func TestTimeToLive(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(150*time.Minute), policy(shim.Always))
		c := call()
		c.TTL = 30 * time.Minute
		task := begin(t, s, c)
		if task.TTL != 30*time.Minute {
			t.Fatalf("ttl %v, want what the client wished", task.TTL)
		}
		for range 29 {
			pass(5 * time.Minute)
			got := read(t, s, task.ID)
			if left := time.Until(got.ExpiresAt()); left < 15*time.Minute {
				t.Fatalf("%v left of the ttl while the task runs", left)
			}
		}
		pass(10 * time.Minute)
		done := read(t, s, task.ID)
		wantStatus(t, done, shim.Completed)
		if want := 180 * time.Minute; done.TTL < want-time.Minute || done.TTL > want+time.Minute {
			t.Errorf("ttl %v at the end, want elapsed + ttl = %v", done.TTL, want)
		}
		pass(20 * time.Minute)
		read(t, s, task.ID)
		pass(10 * time.Minute)
		if _, err := s.Get(t.Context(), anyone, "up", task.ID); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("after its ttl: %v", err)
		}
	})
}

// progress reports n steps, a tenth of a second apart, and ends.
func progress(n int) *scripted {
	return &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
		for i := range n {
			s.Progress(shim.Progress{Progress: float64(i + 1), Total: float64(n)})
			if _, err := after(ctx, 100*time.Millisecond); err != nil {
				return shim.Reply{}, err
			}
		}
		return after(ctx, time.Minute)
	}}
}

func TestProgressMovesTheStatusMessage(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		s := w.gateway("a", progress(100), policy(shim.Always))
		task := begin(t, s, call())
		before := w.store.ops.Load()
		pass(12 * time.Second)
		if got := read(t, s, task.ID); got.StatusMessage != "100/100" {
			t.Errorf("message %q", got.StatusMessage)
		}
		if n := w.store.ops.Load() - before; n > 13 {
			t.Errorf("%d operations for 100 steps in 10s, want one per poll interval", n)
		}
		pass(time.Hour)
		if got := read(t, s, task.ID); got.StatusMessage != "" {
			t.Errorf("message %q of a completed task", got.StatusMessage)
		}
	})
}

type streamed struct{ progress, logs int }

func (s *streamed) Progress(shim.Progress) { s.progress++ }
func (s *streamed) Log(shim.Log)           { s.logs++ }

// Before the handle, progress and logs go to the caller; after it they do not
// (H17, T44).
func TestStreamEndsWithTheHandle(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			for range 10 {
				s.Progress(shim.Progress{Progress: 1, Message: "step"})
				s.Log(shim.Log{Level: "info"})
				if _, err := after(ctx, time.Second); err != nil {
					return shim.Reply{}, err
				}
			}
			return after(ctx, 0)
		}}
		s := w.gateway("a", u, policy(shim.Auto))
		var got streamed
		c := call()
		c.Stream = &got
		task := begin(t, s, c)
		at := got
		if at.progress < 5 || at.progress > 6 || at.logs != at.progress {
			t.Errorf("%+v before the handle at 5s", at)
		}
		if task.StatusMessage != "step" {
			t.Errorf("the handle's message is %q", task.StatusMessage)
		}
		pass(time.Minute)
		if got != at {
			t.Errorf("%+v after the handle, %+v before", got, at)
		}
	})
}

// A result that is there when the process is told to stop is still recorded, if the
// store comes back in the time that is given.
func TestOutcomeIsRecordedWhileHalting(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		b := w.gateway("b", takes(time.Hour), policy(shim.Always))
		a := w.leaving(serves(takes(10*time.Second), policy(shim.Always)))
		task := begin(t, a, call())
		pass(9 * time.Second)
		w.store.down.Store(true)
		pass(2 * time.Second) // the result is there, and cannot be written
		time.AfterFunc(time.Second, func() { w.store.down.Store(false) })
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second) // longer than any pause between two attempts by then
		defer stop()
		must(t, a.Close(ctx))
		wantStatus(t, read(t, b, task.ID), shim.Completed)
	})
}

// A store that does not answer holds a caller up for a bounded time.
func TestStalledStore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(6*time.Second), policy(shim.Auto))
		w.store.stalled.Store(true)
		start := time.Now()
		got, err := s.Call(t.Context(), call())
		if err != nil || string(got.Reply.Result) != result || time.Since(start) > 9*time.Second {
			t.Errorf("after %v: %+v, %v", time.Since(start), got, err)
		}
		w.store.stalled.Store(false)
	})
}
