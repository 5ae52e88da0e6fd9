package shim_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
)

// The question that a client was sent on the stream of its call is in the task that the call
// becomes. One that crosses that step is left to the task, and not sent on the stream.
func TestQuestionsWhenACallBecomesATask(t *testing.T) {
	for name, crosses := range map[string]bool{"asked before": false, "asked meanwhile": true} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			ask, visible := make(chan struct{}), make(chan struct{}) // the store takes its time
			h := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if c.Ask != nil {
					<-ask
				}
				if c.Visible {
					<-visible
				}
				return next(ctx)
			}}
			s := w.over("r1", h, elicits(time.Second, "a"), policy(shim.Auto))
			stream := &relayed{}
			c := legacy(stream)
			c.After = time.Second
			if !crosses {
				close(ask)
			}
			k := calls(t, s, c)
			pass(time.Second)
			if crosses {
				close(ask)
				synctest.Wait()
			}
			close(visible)
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
