package engine_test

import (
	"context"
	"testing"
	"time"

	"taskgate/shim"
)

// The question that a client was sent on the stream of its call is in the task that the call becomes, also when the
// call should become one while the question is being stored.
func TestQuestionsWhenACallBecomesATask(t *testing.T) {
	for name, meets := range map[string]bool{"asked before": false, "asked meanwhile": true} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			ask := make(chan struct{}) // the store takes its time
			h := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if c.Ask != nil {
					<-ask
				}
				return next(ctx)
			}}
			s := w.over("r1", h, elicits(time.Second, "a"), policy(shim.Auto))
			stream := &relayed{}
			c := legacy(stream)
			c.After = 2 * time.Second
			k := calls(t, s, c)
			if meets {
				pass(2 * time.Second)
			}
			close(ask)
			pass(2 * time.Second)
			<-k.done
			if k.err != nil || k.a.Task == nil {
				t.Fatalf("%+v, %v", k.a, k.err)
			}
			wantKeys(t, read(t, s, k.a.Task.ID).Questions, "a")
			if len(stream.asked) != 1 {
				t.Errorf("asked on the stream %d times, want once", len(stream.asked))
			}
		})
	}
}
