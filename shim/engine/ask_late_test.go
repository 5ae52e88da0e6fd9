package engine_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"taskgate/shim"
)

// An answer that the runner still finds when the time is over counts, and its client is
// not told that it came too late.
func TestAnswerAtTheDeadline(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		stream := &relayed{}
		answer := map[string]json.RawMessage{"a": json.RawMessage(`{"result":{"to":"a"}}`)}
		h := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			if answer != nil && c.Take != nil { // just before the runner closes the questions
				if _, err := w.store.Apply(ctx, stream.id, nil, shim.Change{Op: "crossing", Answer: answer}); err != nil {
					return shim.Task{}, err
				}
				answer = nil
			}
			return next(ctx)
		}}
		s := w.over("r1", h, elicits(time.Second, "a", "b"), policy(shim.Auto))
		k := calls(t, s, legacy(stream))
		<-k.done
		wantReply(t, k.a, k.err, `{"answers":[{"to":"a"},{"action":"cancel"}]}`)
		if len(stream.withdrawn) != 1 || stream.withdrawn[0] != "b" {
			t.Errorf("withdrawn: %v", stream.withdrawn)
		}
	})
}

// A question that the server withdraws while it is being stored is not left open.
func TestQuestionWithdrawnWhileItIsStored(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		h := &hooked{}
		h.apply = func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			if len(c.Ask) == 0 {
				return next(ctx)
			}
			if _, err := next(ctx); err != nil {
				return shim.Task{}, err
			}
			<-ctx.Done() // the reply is lost
			return shim.Task{}, shim.ErrUnavailable
		}
		u := &scripted{call: sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			asked, withdraw := context.WithTimeout(ctx, time.Second)
			defer withdraw()
			if _, err := s.Ask(asked, questions("a")...); err == nil {
				t.Error("it was answered")
			}
			return after(ctx, time.Hour)
		})}
		s := w.over("a", h, u, policy(shim.Always))
		task := begin(t, s, taskCall())
		pass(time.Minute)
		wantStatus(t, read(t, s, task.ID), shim.Working)
	})
}
