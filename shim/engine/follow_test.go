package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// states yields the states of these tasks, and no pieces.
func states(ctx context.Context, s *engine.Shim, p shim.Principal, yield func(shim.Task) error, ids ...shim.ID) error {
	tasks := make([]shim.Tracked, len(ids))
	for i, id := range ids {
		tasks[i].ID = id
	}
	return s.Track(ctx, p, "up", tasks, func(u shim.Update) error { return yield(*u.Task) })
}

// follow is a Track of the states of these tasks.
func follow(t *testing.T, s *engine.Shim, p shim.Principal, ids ...shim.ID) *listening {
	t.Helper()
	var tasks []shim.Tracked
	for _, id := range ids {
		tasks = append(tasks, shim.Tracked{ID: id})
	}
	return trackAs(t, s, p, tasks...)
}

// What belongs to somebody else looks like what does not exist, before and after
// it changes.
func TestFollowShowsOnlyTheOwners(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", says(result, words(time.Second, "a", "b")...), streaming(true))
		c := partialsCall()
		c.Principal = ann
		task := begin(t, s, c)
		pass(1500 * time.Millisecond)
		for _, p := range []shim.Principal{anyone, {Subject: "bob"}} {
			f := trackAs(t, s, p, shim.Tracked{ID: task.ID, Pieces: true})
			must(t, f.ended(t))
			f.want(t, "")
		}
	})
}

func TestFollowEndsWithItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(10*time.Second), policy(shim.Always))
		task := begin(t, s, call())
		synctest.Wait()
		f := follow(t, s, anyone, task.ID)
		f.leave()
		if err := f.ended(t); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		enough := errors.New("enough")
		if err := states(t.Context(), s, anyone, func(shim.Task) error { return enough }, task.ID); !errors.Is(err, enough) {
			t.Errorf("got %v, want the error of yield", err)
		}
	})
}

// A store that is down is waited out: what changed meanwhile is yielded once it
// can be read again, without waiting for a message.
func TestFollowOutlastsTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(time.Hour), policy(shim.Always))
		task := begin(t, s, call())
		synctest.Wait()
		w.store.down.Store(true)
		f := follow(t, s, anyone, task.ID)
		pass(10 * time.Second)
		f.want(t, "")
		w.store.down.Store(false)
		pass(rereadFailed)
		f.want(t, "working")
		f.leave()
		_ = f.ended(t)
	})
}

// rereadFailed bounds how long a follower takes to notice that it can read again.
const rereadFailed = time.Second

// Messages of a store may be lost.
func TestFollowDistrustsSilence(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.store.mute.Store(true)
		s := w.gateway("a", takes(20*time.Second), policy(shim.Always))
		task := begin(t, s, call())
		synctest.Wait()
		f := follow(t, s, anyone, task.ID)
		f.want(t, "working")
		pass(25 * time.Second)
		f.want(t, "")
		pass(6 * time.Second)
		f.want(t, "completed")
		must(t, f.ended(t))
	})
}

// A slow reader gets the newest state, not every one.
func TestFollowMergesChanges(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", takes(time.Hour), policy(shim.Always))
		task := begin(t, s, call())
		synctest.Wait()
		gate, got := make(chan struct{}), make(chan string, 10)
		go func() {
			_ = states(t.Context(), s, anyone, func(t shim.Task) error {
				got <- t.StatusMessage
				<-gate
				return nil
			}, task.ID)
		}()
		synctest.Wait()
		for _, message := range []string{"1", "2", "3"} {
			must(t, errorOf(w.store.Apply(t.Context(), task.ID, nil, shim.Change{Op: message, StatusMessage: &message})))
		}
		synctest.Wait()
		close(gate)
		synctest.Wait()
		if first, second := <-got, <-got; first != "" || second != "3" || len(got) != 0 {
			t.Errorf("yielded %q, %q and %d more; want the first state and the newest", first, second, len(got))
		}
	})
}
