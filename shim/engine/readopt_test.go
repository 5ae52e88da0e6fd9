package engine_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// A replica that is cut off, and knows nothing of what becomes of its task meanwhile,
// adopts it again when the one that had it is lost as well. What runs there still is of
// before that: the retry of a round, which the other one sent, is not sent again, and
// what is said from then on goes to the stream of the new run.
func TestTaskAdoptedBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		cut := &faultyStore{Store: w.store.Store}
		first := asksInRounds(time.Second, "x")
		s := w.gatewayOf("cut", serves(first, policy(shim.Always)), func(o *engine.Options) { o.Store = cut })
		c := taskCall()
		task := begin(t, s, c)
		pass(2 * time.Second)
		cut.down.Store(true)

		// The other one plays the round, and is lost while the server has the retry.
		second := &scripted{call: sending(func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
			return after(ctx, time.Hour)
		})}
		b := w.still("b", serves(second, policy(shim.Always)), nil)
		stop := run(b)
		pass(20 * time.Second)
		updateTask(t, b, task.ID, results("q1"))
		pass(time.Second)
		if second.calls.Load() != 1 {
			t.Fatalf("the other replica has sent %d retries", second.calls.Load())
		}
		stop()
		w.mute(b)
		cut.down.Store(false)
		pass(time.Minute)
		got := read(t, s, task.ID)
		wantStatus(t, got, shim.Failed)
		if !strings.Contains(string(got.Outcome.Error), "replica that ran this call was lost") {
			t.Errorf("%s", got.Outcome.Error)
		}
		if first.requests() != params {
			t.Errorf("the replica that was cut off sent\n%s", first.requests())
		}
	})
}
