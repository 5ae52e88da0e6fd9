package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
)

// What the server asks while nobody waits, or has asked the client that gave up, it asks the repeat, at any replica.
func TestRepeatIsAsked(t *testing.T) {
	for name, asksAfter := range map[string]time.Duration{"before the giving up": 30 * time.Second, "after it": 70 * time.Second} {
		for _, at := range []string{"a", "b"} {
			bubbleOf(t, name+", at "+at, func(t *testing.T, w *world) {
				u := &asks{}
				u.call = sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
					if _, err := after(ctx, asksAfter); err != nil {
						return shim.Reply{}, err
					}
					return u.ask(ctx, s, time.Second, "a")
				})
				a, b := w.repeating("a", u, repeats(shim.RepeatAuto)), w.repeating("b", u, repeats(shim.RepeatAuto))
				c := sameCall("client", "call")
				c.Asking, c.Stream = shim.AskStream, &relayed{}
				gaveUp(t, a, c)
				pass(20 * time.Second)
				stream := &relayed{}
				c.Stream = stream
				again := a
				if at == "b" {
					again = b
				}
				k := calls(t, again, c)
				wantKeys(t, stream.asked, "a")
				must(t, again.Answer(t.Context(), c.Principal, "up", stream.id, "a", shim.Answer{Result: json.RawMessage(`{"to":"a"}`)}))
				<-k.done
				wantReply(t, k.a, k.err, `{"answers":[{"to":"a"}]}`)
				if k.a.PickedUp.IsZero() || u.calls.Load() != 1 {
					t.Errorf("%d calls, picked up: %v", u.calls.Load(), k.a.PickedUp)
				}
			})
		}
	}
}

// Where a client that takes tasks has given up before its call became one, its repeat becomes one as any call does, with
// the partial results that the tool gives from then on.
func TestRepeatBecomesATask(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := says(result, words(20*time.Second, "one", "two", "three", "four", "five", "six", "seven", "eight")...)
		p := streaming(true)
		p.Tasks, p.Grace, p.Repeat, p.Linger = shim.Auto, 65*time.Second, shim.RepeatAuto, 5*time.Minute
		a, b := w.repeating("a", u, p), w.repeating("b", u, p)
		c := sameCall("client", "call")
		c.Handle, c.Block, c.Partials = true, false, true
		gaveUp(t, a, c)
		got, err := b.Call(t.Context(), c)
		if err != nil || got.Task == nil {
			t.Fatalf("%+v, %v", got, err)
		}
		f := trackAs(t, b, c.Principal, shim.Tracked{ID: got.Task.ID, Pieces: true})
		pass(2 * time.Minute)
		must(t, f.ended(t))
		if lines := strings.Join(f.lines, " "); !strings.Contains(lines, "seven") || !strings.Contains(lines, "completed") || u.calls.Load() != 1 {
			t.Errorf("%d calls; the task had %s", u.calls.Load(), lines)
		}
	})
}

// The session of a client that has signed in ends during a call: the same client picks the call up in its next session.
// Where nobody signs in, the end of a session cancels its calls.
func TestRepeatAfterTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := takes(150 * time.Second)
		a, b := w.repeating("a", u, repeats(shim.RepeatAuto)), w.repeating("b", u, repeats(shim.RepeatAuto))
		in := func(session, owner, client string) shim.Call {
			c := sameCall(session, "call")
			c.Principal = shim.Principal{Session: session, Subject: owner}
			if owner != "" {
				c.Repeat.AfterSession = func() string { return owner + client }
			}
			c.Repeat.GaveUp = func(cause error) bool { return cause == error(errGaveUp) || owner != "" && shim.IsSessionEnd(cause) }
			return c
		}
		end := func(c shim.Call) {
			t.Helper()
			if _, err := patient(a, c, time.Minute, shim.ErrCancelled); !errors.Is(err, shim.ErrCancelled) {
				t.Errorf("the client whose session ended got %v", err)
			}
			synctest.Wait()
		}
		end(in("1", "alice", "app"))
		for _, other := range []shim.Call{in("2", "alice", "another app"), in("3", "bob", "app")} {
			got, err := b.Call(t.Context(), other)
			if err != nil || !got.PickedUp.IsZero() {
				t.Errorf("another client got %+v, %v", got, err)
			}
		}
		end(in("1", "alice", "app"))
		gaveUp(t, b, in("4", "alice", "app")) // and once more, by its words
		wantAnswer(t, a, in("4", "alice", "app"), 30*time.Second, 2*time.Minute)
		wantCalls(t, u, 4)
		end(in("1", "", ""))
		if u.ended() == nil {
			t.Error("the call of an anonymous client goes on without its session")
		}
	})
}
