package engine_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// A task that the store has lost has failed, for its owner alone: an id that was never given out
// is unknown, and so is one whose time is over.
func TestLostTaskIsAVerdict(t *testing.T) {
	bob := shim.Principal{Subject: "bob"}
	keyed := func(name string, w *world, keys ...string) *engine.Shim {
		srv := serves(takes(2*time.Minute), policy(shim.Always))
		return w.gatewayOf(name, srv, func(o *engine.Options) {
			o.Heartbeat = time.Hour // nobody dies here
			for _, key := range keys {
				o.MarkKeys = append(o.MarkKeys, []byte(key))
			}
		})
	}
	var id shim.ID
	bubble(t, func(t *testing.T, w *world) {
		s := keyed("before", w, "new", "old")
		c := call()
		c.Principal = ann
		id = begin(t, s, c).ID
		must(t, errorOf(shim.ParseID(string(id))))

		empty := newWorld(t) // what a restart finds over the embedded store, or a Redis without its data
		defer empty.close()
		after := keyed("after", empty, "newest", "new")
		if got, err := after.Get(t.Context(), ann, "up", id); err != nil || got.Status != shim.Working {
			t.Errorf("at first the owner reads %+v, %v", got, err) // its replica may write it again
		}
		pass(28 * time.Second)
		got, err := after.Get(t.Context(), ann, "up", id)
		if err != nil || got.Status != shim.Failed || got.Outcome == nil || !strings.Contains(string(got.Outcome.Error), "may have been done") {
			t.Errorf("the owner reads %+v, %v", got, err)
		}
		if _, err := after.Cancel(t.Context(), ann, "up", id); !errors.Is(err, shim.ErrFinal) {
			t.Errorf("cancel: %v", err)
		}
		if err := after.Update(t.Context(), ann, "up", id, nil); err != nil {
			t.Errorf("update: %v", err)
		}
		forged := id[:len(id)-1] + "0"
		if forged == id {
			forged = id[:len(id)-1] + "1"
		}
		for name, try := range map[string]func() error{
			"another caller": func() error { _, err := after.Get(t.Context(), bob, "up", id); return err },
			"nobody":         func() error { _, err := after.Get(t.Context(), anyone, "up", id); return err },
			"another server": func() error { _, err := after.Get(t.Context(), ann, "down", id); return err },
			"a forged id":    func() error { _, err := after.Get(t.Context(), ann, "up", forged); return err },
			"no mark":        func() error { _, err := after.Get(t.Context(), ann, "up", id[:36]); return err },
		} {
			if err := try(); !errors.Is(err, shim.ErrNotFound) {
				t.Errorf("%s: %v", name, err)
			}
		}
		other := newWorld(t)
		defer other.close()
		if _, err := keyed("stranger", other, "theirs").Get(t.Context(), ann, "up", id); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("another deployment: %v", err)
		}

		pass(61 * time.Minute) // it is not kept any more, and may have run for so long where it was made
		if got, err := after.Get(t.Context(), ann, "up", id); err != nil || got.Status != shim.Failed {
			t.Errorf("after its ttl, in another epoch: %+v, %v", got, err)
		}
		pass(2 * time.Minute) // after its end
		if _, err := s.Get(t.Context(), ann, "up", id); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("after its ttl, where it was made: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // on a clock that begins where the other one did
		pass(26 * time.Hour)
		w := newWorld(t)
		defer w.close()
		if _, err := keyed("later", w, "new").Get(t.Context(), ann, "up", id); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("long after its ttl: %v", err)
		}
	})
}

// renamed is a store that has lost what it had.
type renamed struct {
	shim.Store
	lost atomic.Bool
}

func (r *renamed) Epoch(ctx context.Context) (string, error) {
	epoch, err := r.Store.Epoch(ctx)
	if r.lost.Load() {
		epoch += " after"
	}
	return epoch, err
}

// A replica that outlives the data of its store makes ids of the new epoch soon: a task with such an
// id is unknown when its time is over, as anywhere.
func TestIDsOfAStoreThatLostItsData(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		store := &renamed{Store: w.store.Store}
		w.store.Store = store
		p := policy(shim.Always)
		p.TTL = time.Minute
		s := w.gateway("r", takes(10*time.Second), p)
		begin(t, s, call())
		store.lost.Store(true)
		pass(time.Minute)
		id := begin(t, s, call()).ID
		pass(20 * time.Second)
		if got, err := s.Get(t.Context(), anyone, "up", id); err != nil || got.Status != shim.Completed {
			t.Fatalf("at its end: %+v, %v", got, err)
		}
		pass(p.TTL)
		if got, err := s.Get(t.Context(), anyone, "up", id); !errors.Is(err, shim.ErrNotFound) {
			t.Errorf("after its ttl: %+v, %v", got, err)
		}
	})
}
