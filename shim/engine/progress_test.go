package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"taskgate/shim"
)

// steps is an upstream that reports progress every second, for as long as it runs.
func steps() *scripted {
	return &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
		for i := 1; ; i++ {
			if _, err := after(ctx, time.Second); err != nil {
				return shim.Reply{}, err
			}
			s.Progress(shim.Progress{Progress: float64(i), Raw: fmt.Appendf(nil, `{"progress":%d}`, i)})
		}
	}}
}

// The progress of a call whose client named a token for it is in its task (L35), as
// fresh as the status message, also where the policy folds none.
func TestProgressAfterTheHandle(t *testing.T) {
	for _, fold := range []bool{true, false} {
		for _, token := range []string{"", `"mine"`} {
			bubbleOf(t, fmt.Sprintf("fold=%t/token=%s", fold, token), func(t *testing.T, w *world) {
				p := policy(shim.Auto)
				p.FoldProgress = fold
				s := w.gateway("a", steps(), p)
				c := demanded(0)
				if token != "" {
					c.ProgressToken = json.RawMessage(token)
				}
				task := begin(t, s, c)
				if got := read(t, s, task.ID).Progress; string(got.Token) != token || got.Params != nil {
					t.Errorf("before the first: %s %s", got.Token, got.Params)
				}
				pass(2*p.PollInterval + 2*time.Second)
				got := read(t, s, task.ID).Progress
				if has := got.Params != nil; has != (token != "") || string(got.Token) != token {
					t.Errorf("after some: %s %s", got.Token, got.Params)
				}
			})
		}
	}
}

// The last of many reports is told also where the tool says nothing more for long: it goes out after
// the pause that follows the one before.
func TestReportBeforeAPause(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		const pause = time.Hour
		p := policy(shim.Auto)
		s := w.gateway("a", &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			for part := range 2 {
				for i := 1; i <= 10; i++ {
					n := 10*part + i
					s.Progress(shim.Progress{Progress: float64(n), Message: fmt.Sprintf("%d of 20", n), Raw: fmt.Appendf(nil, `{"progress":%d}`, n)})
					if _, err := after(ctx, 10*time.Millisecond); err != nil {
						return shim.Reply{}, err
					}
				}
				if _, err := after(ctx, pause); err != nil {
					return shim.Reply{}, err
				}
			}
			return shim.Reply{Result: json.RawMessage(`{"content":[]}`)}, nil
		}}, p)
		c := demanded(0)
		c.ProgressToken = json.RawMessage(`"mine"`)
		task := begin(t, s, c)
		for _, last := range []string{"10", "20"} {
			pass(2*p.PollInterval + time.Second)
			got := read(t, s, task.ID)
			if got.StatusMessage != last+" of 20" || string(got.Progress.Params) != `{"progress":`+last+`}` {
				t.Errorf("%q, %s, want %s of 20", got.StatusMessage, got.Progress.Params, last)
			}
			pass(pause)
		}
	})
}
