package engine_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// Result, cancel from two replicas and the time limit fall on one instant: the
// task ends once, and what everybody reads first is what everybody reads for ever.
func TestEndIsFinalUnderEveryRace(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		p := policy(shim.Always)
		p.Timeout = 10 * time.Second
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			if err := s.Checkpoint(json.RawMessage(`{}`))(ctx); err != nil {
				return shim.Reply{}, err
			}
			<-time.After(10 * time.Second) // whatever becomes of ctx
			return shim.Reply{Result: json.RawMessage(result)}, nil
		}}
		a, b := w.gateway("a", u, p), w.gateway("b", u, p)
		ends := map[shim.Status]int{}
		for range 20 {
			task := begin(t, a, call())
			for _, g := range []*engine.Shim{a, b} {
				time.AfterFunc(time.Until(task.CreatedAt.Add(10*time.Second)), func() {
					_, _ = g.Cancel(context.Background(), anyone, "up", task.ID) // one of many who try
				})
			}
			seen := make(chan shim.Task, 1)
			go func() {
				got, err := b.Wait(context.Background(), anyone, "up", task.ID, nil)
				if err != nil {
					t.Error(err)
				}
				seen <- got
			}()
			first := <-seen
			pass(2 * time.Second)
			for _, g := range []*engine.Shim{a, b} {
				if got := read(t, g, task.ID); got.Status != first.Status || got.Version != first.Version {
					t.Fatalf("%s (version %d), and then %s (version %d)", first.Status, first.Version, got.Status, got.Version)
				}
			}
			ends[first.Status]++
		}
		t.Logf("ended %v", ends)
	})
}
