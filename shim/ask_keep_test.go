package shim_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
)

// gated is a store that takes its time to ask, and to make a task visible.
type gated struct {
	shim.Store
	ask, visible chan struct{}
}

func (g *gated) Apply(ctx context.Context, id shim.ID, l *shim.Lease, c shim.Change) (shim.Task, error) {
	if c.Ask != nil {
		<-g.ask
	}
	if c.Visible {
		<-g.visible
	}
	return g.Store.Apply(ctx, id, l, c)
}

// The question that a client was sent on the stream of its call is in the task that the call
// becomes. One that crosses that step is left to the task, and not sent on the stream.
func TestQuestionsWhenACallBecomesATask(t *testing.T) {
	for name, crosses := range map[string]bool{"asked before": false, "asked meanwhile": true} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			g := &gated{w.store.Store, make(chan struct{}), make(chan struct{})}
			w.store.Store = g
			s := w.gateway("r1", elicits(time.Second, "a"), policy(shim.Auto))
			stream := &relayed{}
			c := legacy(stream)
			c.After = time.Second
			if !crosses {
				close(g.ask)
			}
			k := calls(t, s, c)
			pass(time.Second)
			if crosses {
				close(g.ask)
				synctest.Wait()
			}
			close(g.visible)
			<-k.done
			if k.err != nil || k.a.Task == nil {
				t.Fatalf("%+v, %v", k.a, k.err)
			}
			got := read(t, s, k.a.Task.ID)
			wantKeys(t, got.Questions, "a")
			if len(stream.asked) == 0 != crosses {
				t.Errorf("asked on the stream %d times", len(stream.asked))
			}
		})
	}
}
