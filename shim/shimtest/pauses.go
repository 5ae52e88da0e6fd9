package shimtest

import (
	"context"
	"testing"
	"time"

	"taskgate/shim"
)

// Pauses checks that a store keeps the contract of shim.Pauses.
func Pauses(t *testing.T, open OpenStore, of func(shim.Store) shim.Pauses) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	t.Cleanup(cancel)
	handle := open(t)
	s := &storeTest{T: t, ctx: ctx, a: handle(), b: handle(), handle: handle}
	one, other := of(s.a), of(s.b)
	heard := s.hearGoodbyes()
	wants := func(want ...shim.Pause) {
		t.Helper()
		all, err := other.Paused(ctx)
		s.ok(err)
		for i := range all {
			if time.Since(all[i].Since).Abs() > time.Minute {
				t.Errorf("paused since %v", all[i].Since)
			}
			all[i].Since = time.Time{}
		}
		s.same(want, all)
	}
	all := shim.Pause{Upstream: "one", By: "ann"}
	tool := shim.Pause{Upstream: "one", Tool: "odd/name with \n everything", By: "bob the second"}
	wants()
	s.ok(one.Resume(ctx, all)) // nothing is paused
	heard()
	first, err := one.Pause(ctx, tool)
	s.ok(err)
	heard()
	_, err = one.Pause(ctx, all)
	s.ok(err)
	heard()
	wants(all, tool)
	again, err := other.Pause(ctx, shim.Pause{Upstream: tool.Upstream, Tool: tool.Tool, By: "carl"})
	s.ok(err)
	s.same(first, again)
	wants(all, tool)
	s.ok(other.Resume(ctx, all))
	wants(tool)
	s.ok(other.Resume(ctx, tool))
	s.ok(other.Resume(ctx, tool)) // its reply was lost
	wants()
	heard()
}

// hearGoodbyes listens as a replica, and returns a function that waits for the next goodbye.
func (t *storeTest) hearGoodbyes() (next func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.ctx)
	synced, news, over := make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(over)
		for e, err := range t.b.Inbox(ctx, "other") {
			switch {
			case err != nil:
				return
			case e.Synced:
				synced <- struct{}{}
			case e.Goodbye:
				news <- struct{}{}
			}
		}
	}()
	t.Cleanup(func() { stop(); <-over })
	<-synced
	return func() {
		t.Helper()
		select {
		case <-news:
		case <-synced: // the store was away, and it may be read again
		case <-t.ctx.Done():
			t.Fatal("no news")
		}
	}
}
