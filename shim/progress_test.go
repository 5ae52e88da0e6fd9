package shim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
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
			t.Run(fmt.Sprintf("fold=%t/token=%s", fold, token), func(t *testing.T) {
				bubble(t, func(t *testing.T, w *world) {
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
					synctest.Wait()
					got := read(t, s, task.ID).Progress
					if has := got.Params != nil; has != (token != "") || string(got.Token) != token {
						t.Errorf("after some: %s %s", got.Token, got.Params)
					}
				})
			})
		}
	}
}
