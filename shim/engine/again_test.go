package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
)

// beginsAnew is a server that asks in its first round, and says in the second all that it
// said before, as it has kept nothing.
func beginsAnew() *scripted {
	return &scripted{call: sending(func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
		pieces := []string{"a", "b"}
		if r.Retry != nil {
			pieces = []string{"a", "b", "c", "d"}
		}
		for i, piece := range pieces {
			if _, err := after(ctx, time.Second); err != nil {
				return shim.Reply{}, err
			}
			s.Progress(shim.Progress{Progress: float64(i + 1), Message: piece, Raw: fmt.Appendf(nil, `{"progress":%d,"message":%q}`, i+1, piece)})
		}
		if _, err := after(ctx, time.Second); err != nil || r.Retry != nil {
			return shim.Reply{Result: json.RawMessage(`{"content":[{"type":"text","text":"abcd"}]}`)}, err
		}
		return shim.Reply{Result: json.RawMessage(`{}`), InputRequired: true, Round: &shim.Round{Questions: questions("x")}}, nil
	})}
}

// A server that is called again after a question begins from the start. The progress of
// its task goes on, and what streams of its result is not streamed twice.
func TestNothingIsSaidTwiceInRounds(t *testing.T) {
	for _, lost := range []bool{false, true} {
		bubbleOf(t, fmt.Sprintf("lost=%t", lost), func(t *testing.T, w *world) {
			p := streaming(true)
			c := taskCall()
			c.ProgressToken, c.Request.Progress = json.RawMessage(`"t"`), true
			b := w.gateway("b", beginsAnew(), p)
			pass(6 * time.Second)
			var id shim.ID
			if lost {
				id = w.lost(beginsAnew(), p, c, 5*time.Second).Task.ID
			} else {
				id = begin(t, b, c).ID
			}
			pass(5 * time.Second)
			wantStatus(t, read(t, b, id), shim.InputRequired)
			var progress []string
			done := make(chan error, 1)
			go func() {
				done <- b.Track(t.Context(), anyone, "up", []shim.Tracked{{ID: id}}, func(u shim.Update) error {
					text, _ := jsonrpc.GetString(u.Task.Progress.Params, "message")
					progress = append(progress, text)
					return nil
				})
			}()
			l := track(t, b, shim.Tracked{ID: id, Pieces: true})
			l.want(t, "0:a 1:b input_required")
			updateTask(t, b, id, results("q1"))
			pass(30 * time.Second)
			l.want(t, "working 2:c 3:d completed")
			if err := <-done; err != nil || progress[0] != "b" || !slices.IsSorted(progress) {
				t.Errorf("progress %s, %v", progress, err)
			}
		})
	}
}

// Nor is it said twice to a caller that waits.
func TestNothingIsSaidTwiceToACaller(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", beginsAnew(), policy(shim.Auto))
		stream := &relayed{}
		c := legacy(stream)
		k := calls(t, s, c)
		pass(5 * time.Second)
		answerTask(t, s, c.Principal, stream.id, "q1", `{}`)
		if <-k.done; k.err != nil || stream.progress != 4 {
			t.Errorf("%d notifications, %v", stream.progress, k.err)
		}
	})
}
