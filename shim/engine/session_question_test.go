package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// answers are those that were delivered.
func (u *asks) answers() []shim.Answer {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.got)
}

// client is the anonymous client of a legacy session.
var client = shim.Principal{Session: "s"}

// sessionQuestion is what a server asks a session's client outside of any call.
func sessionQuestion() shim.Call {
	return shim.Call{
		Upstream: "up", Principal: client, Origin: "legacy", Asking: shim.AskStream,
		Request: shim.Request{Method: "elicitation/create", Session: shim.Session{Key: "s", Shared: true}},
	}
}

// poses is a replica on which questions wait for a minute.
func (w *world) poses(name string, u shim.Upstream) *engine.Shim {
	return w.gatewayFor(name, shim.Server{
		Upstream: u, Policy: func(string, shim.Hints) shim.Policy { return policy(shim.Auto) }, Other: shim.Policy{InputTimeout: time.Minute},
	})
}

// heard follows the question until it is over.
func heard(t *testing.T, s *engine.Shim, p shim.Principal, id shim.ID) *listening {
	t.Helper()
	set := s.NewSet(p, "up", shim.Tracked{ID: id, Hidden: true})
	set.Close()
	return followSet(t, set)
}

// A question that belongs to no call has a record that nobody but its client can see, and
// one answer: the client's first, or that it did not give one.
func TestPose(t *testing.T) {
	answer := func(t *testing.T, s *engine.Shim, p shim.Principal, id shim.ID, to string) {
		t.Helper()
		err := s.Answer(t.Context(), p, "up", id, "a", shim.Answer{Result: json.RawMessage(`{"to":"` + to + `"}`)})
		if err != nil && !errors.Is(err, shim.ErrNotFound) {
			t.Error(err)
		}
	}
	for name, c := range map[string]struct {
		do   func(t *testing.T, s *engine.Shim, id shim.ID, over context.CancelCauseFunc)
		want string // what the upstream client got
		to   shim.Status
	}{
		"answered twice": {func(t *testing.T, s *engine.Shim, id shim.ID, _ context.CancelCauseFunc) {
			answer(t, s, shim.Principal{Session: "x"}, id, "foreign")
			answer(t, s, client, id, "first")
			answer(t, s, client, id, "second")
		}, `{"answers":[{"to":"first"}]}`, shim.Completed},
		"not answered": {func(*testing.T, *engine.Shim, shim.ID, context.CancelCauseFunc) {
			pass(time.Minute)
		}, `{"answers":[{"action":"cancel"}]}`, shim.Completed},
		"session over": {func(_ *testing.T, _ *engine.Shim, _ shim.ID, over context.CancelCauseFunc) {
			over(shim.ErrCancelled)
		}, "", shim.Cancelled},
		"request over": {func(t *testing.T, s *engine.Shim, id shim.ID, over context.CancelCauseFunc) {
			over(nil) // nobody has cancelled
			pass(time.Second)
			answer(t, s, client, id, "late")
		}, `{"answers":[{"to":"late"}]}`, shim.Completed},
	} {
		hoursOf(t, name, func(t *testing.T, w *world) {
			u := elicits(0, "a")
			s, other := w.poses("a", u), w.poses("b", elicits(0, "a"))
			ctx, over := context.WithCancelCause(t.Context())
			done := make(chan bool, 1)
			id, err := s.AskSession(ctx, sessionQuestion(), json.RawMessage(`{}`), func(_ shim.ID, over bool) { done <- over })
			must(t, err)
			last := heard(t, other, client, id)
			pass(time.Second)
			if _, err := s.Get(t.Context(), client, "up", id); !errors.Is(err, shim.ErrNotFound) {
				t.Errorf("it looks like a task: %v", err)
			}
			stranger := heard(t, s, shim.Principal{Session: "x"}, id)
			must(t, <-stranger.done)
			stranger.want(t, "gone")
			c.do(t, other, id, over)
			pass(time.Second)
			must(t, <-last.done)
			if got := last.tasks[len(last.tasks)-1]; got.Status != c.to || len(got.Questions) != 1 || got.Questions[0].Key != "a" {
				t.Errorf("in the end %+v", got)
			}
			if !<-done || u.calls.Load() != 0 {
				t.Errorf("not over, after %d calls", u.calls.Load())
			}
			if got := spell(u.answers()); c.want != "" && got != c.want || c.want == "" && u.delivered() != 0 {
				t.Errorf("the server got %s", got)
			}
			pass(3 * time.Minute)
			w.wantGone(id)
		})
	}
}

// A call may show a question that is not its own. An answer to the call finds the question, at any replica, also when the
// call is over, and whoever answers somebody else's changes nothing.
func TestAnswerToACallThatOnlyShowsAQuestion(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := elicits(0, "a")
		s, other := w.poses("a", u), w.poses("b", elicits(0, "a"))
		over := make(chan bool, 1)
		id, err := s.AskSession(t.Context(), sessionQuestion(), json.RawMessage(`{}`), func(_ shim.ID, o bool) { over <- o })
		must(t, err)
		pass(time.Second)
		tell := func(p shim.Principal, text string) error {
			return other.Answer(t.Context(), p, "up", shim.NewID(), shim.ShownKey(id, "a"), shim.Answer{Result: json.RawMessage(text)})
		}
		for _, c := range []struct {
			of   shim.Principal
			text string
		}{{shim.Principal{Session: "x"}, `{"to":"foreign"}`}, {client, `{"to":"first"}`}, {client, `{"to":"second"}`}} {
			if err := tell(c.of, c.text); !errors.Is(err, shim.ErrNotFound) { // of the call, which is gone
				t.Error(err)
			}
			pass(time.Second)
		}
		if got := spell(u.answers()); !<-over || got != `{"answers":[{"to":"first"}]}` {
			t.Errorf("the server got %s", got)
		}
	})
}

// The log says of such a question that it was asked and settled, and nothing of a call that is resumed.
func TestPoseIsLogged(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var log strings.Builder
		s := w.gatewayOf("a", shim.Server{
			Upstream: elicits(0, "a"), Policy: func(string, shim.Hints) shim.Policy { return policy(shim.Auto) }, Other: shim.Policy{InputTimeout: time.Minute},
		}, func(o *engine.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		over := make(chan bool, 1)
		must(t, errorOf(s.AskSession(t.Context(), sessionQuestion(), json.RawMessage(`{}`), func(_ shim.ID, o bool) { over <- o })))
		<-over
		synctest.Wait()
		text := log.String()
		if strings.Contains(text, "taskgate.task.resumed") || !strings.Contains(text, "taskgate.task.asked") || !strings.Contains(text, "taskgate.task.answered") {
			t.Errorf("logged:\n%s", text)
		}
	})
}

// A question outside of any call outlives its replica, one that stops and one that is lost, with the time it had, and
// is answered by the one that goes on with it.
func TestPoseOutlivesItsReplica(t *testing.T) {
	for name, stops := range map[string]bool{"stops": true, "is lost": false} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			first, heir := elicits(0, "a"), elicits(0, "a")
			b := w.poses("b", heir)
			pass(6 * time.Second)
			s := w.still("a", serves(first, policy(shim.Auto)), nil)
			stop := run(s)
			over := make(chan bool, 1)
			id, err := s.AskSession(t.Context(), sessionQuestion(), json.RawMessage(`{}`), func(_ shim.ID, o bool) { over <- o })
			must(t, err)
			pass(time.Second)
			if stops {
				if err := s.Halt(t.Context()); err != nil {
					t.Error(err)
				}
				if <-over {
					t.Error("said to be over")
				}
				if _, err := s.AskSession(t.Context(), sessionQuestion(), json.RawMessage(`{}`), nil); !errors.Is(err, shim.ErrDraining) {
					t.Errorf("asked while it stops: %v", err)
				}
			}
			stop()
			if stops {
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
			} else {
				w.mute(s)
			}
			pass(20 * time.Second)
			answerTask(t, b, client, id, "a", `{"to":"a"}`)
			pass(time.Second)
			if got := spell(heir.answers()); first.delivered() != 0 || got != `{"answers":[{"to":"a"}]}` {
				t.Errorf("the first delivered %d, the heir %s", first.delivered(), got)
			}
		})
	}
}
