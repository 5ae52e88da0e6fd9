package legacy

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// askingSession is a session in a store whose client can be asked.
func askingSession(t *testing.T, store Sessions) *session {
	t.Helper()
	table := NewTable(store, 3*time.Second, func(context.Context, Ended) {})
	s := mustCreate(t, table, sessionState{Capabilities: json.RawMessage(`{"elicitation":{}}`)})
	t.Cleanup(func() {
		s.endUse()
		_ = table.Close(context.Background())
	})
	return s
}

// asksOf is a task that asks these questions.
func asksOf(keys ...string) shim.Task {
	task := shim.Task{ID: shim.NewID(), Visible: true, Status: shim.InputRequired}
	for _, key := range keys {
		task.Questions = append(task.Questions, shim.Question{Key: key, Method: mcp.MethodElicit, Params: json.RawMessage(`{}`)})
	}
	return task
}

// storeLine is a stream of a session whose messages only get into its log.
func storeLine(s *session, stream string) askLine {
	return askLine{
		ask: func(ctx context.Context, name, void string, message []byte) (string, bool, error) {
			_, holder, has, err := s.table.store.Ask(ctx, s.id, stream, stream, name, void, message)
			return holder, has, err
		},
		over: func([]byte) {},
	}
}

// A question that could not be asked for want of the store is asked once that is back,
// although its task does not change.
func TestAskerWaitsForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := askingSession(t, wiretest.OpenSessions(t, 1, time.Hour))
		ctx, end := context.WithCancel(t.Context())
		sent, fails := 0, 3
		a := newAsker(ctx, &endpoint.Endpoint{}, s, nil, askLine{ask: func(context.Context, string, string, []byte) (string, bool, error) {
			if fails--; fails >= 0 {
				return "", false, shim.ErrUnavailable
			}
			sent++
			return "", false, nil
		}})
		task := asksOf("q")
		for range 2 {
			a.takeState(task)
			wiretest.Wait(10 * time.Second)
			if sent != 1 {
				t.Fatalf("asked %d times", sent)
			}
		}
		end()
		a.work.Wait()
	})
}

// A client that answers while a round over the questions is under way is not asked again by that
// round, though the round began before the answer.
func TestAskerIsAnsweredMeanwhile(t *testing.T) {
	s := askingSession(t, wiretest.OpenSessions(t, 1, time.Hour))
	sent := 0
	a := newAsker(t.Context(), &endpoint.Endpoint{}, s, nil, askLine{ask: func(context.Context, string, string, []byte) (string, bool, error) {
		sent++
		return "", false, nil
	}})
	a.wake = make(chan struct{}, 1) // the rounds are those of the test
	before := asksOf("q")
	a.takeState(before)
	a.askAll(false)
	answered := before
	answered.Questions = []shim.Question{before.Questions[0]}
	answered.Questions[0].Answer = []byte(`{}`)
	a.takeState(answered)
	a.askOne(before, before.Questions[0], false)
	if sent != 1 {
		t.Errorf("asked %d times", sent)
	}
}

// Whoever goes on with a stream finds in its log what the replica before it has asked to
// the last, and does not ask it again.
func TestAskerFindsTheLatestQuestion(t *testing.T) {
	for name, late := range map[string]bool{"asked to the last": true, "not asked": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logs := wiretest.OpenSessions(t, 1, time.Hour)
				s := askingSession(t, logs)
				task := asksOf("q")
				_, err := logs.Open(t.Context(), s.id, "x", []byte("[]"))
				if late {
					message := questionRequest(task.ID, task.Questions[0], true)
					_, _, _, err = logs.Ask(t.Context(), s.id, "x", "x", questionName(task.ID, "q"), "", message)
				}
				if err != nil {
					t.Fatal(err)
				}
				log, _, _, err := s.readLog(t.Context(), "x", 0)
				if err != nil {
					t.Fatal(err)
				}
				asked := questionsOf(log)
				ctx, end := context.WithCancel(t.Context())
				sent := 0
				a := newAsker(ctx, &endpoint.Endpoint{}, s, asked, askLine{ask: func(context.Context, string, string, []byte) (string, bool, error) {
					sent++
					return "", false, nil
				}})
				a.takeState(task)
				wiretest.Wait(time.Second)
				if sent == 1 == late {
					t.Errorf("asked %d times", sent)
				}
				end()
				a.work.Wait()
			})
		})
	}
}

// leaveless is a store that cannot be told a few times that a stream is left.
type leaveless struct {
	Sessions
	fails int
}

func (l *leaveless) Leave(ctx context.Context, id, stream string, note []byte) error {
	if l.fails--; l.fails >= 0 {
		return shim.ErrUnavailable
	}
	return l.Sessions.Leave(ctx, id, stream, note)
}

// What was asked on a stream that its client has left is asked on another one, as soon as
// the store can be told that it is left.
func TestQuestionsOfABrokenStreamAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &leaveless{wiretest.OpenSessions(t, 1, time.Hour), 2}
		s := askingSession(t, store)
		ctx, end := context.WithCancel(t.Context())
		task := asksOf("a", "b")
		var streams []*asker
		for _, stream := range []string{getStream, "y"} {
			if _, err := store.Open(ctx, s.id, stream, nil); err != nil {
				t.Fatal(err)
			}
			a := newAsker(ctx, &endpoint.Endpoint{}, s, nil, storeLine(s, stream))
			a.takeState(task)
			wiretest.Wait(time.Second)
			streams = append(streams, a)
		}
		open := func(a *asker) (keys []string) {
			a.mu.Lock()
			defer a.mu.Unlock()
			for _, q := range task.Questions {
				if a.asked[questionName(task.ID, q.Key)] {
					keys = append(keys, q.Key)
				}
			}
			return keys
		}
		both := []string{"a", "b"}
		if got := open(streams[0]); !slices.Equal(got, both) || open(streams[1]) != nil {
			t.Errorf("asked %v and %v", got, open(streams[1]))
		}
		(&writer{s: s, name: getStream}).leaveStream()
		wiretest.Wait(4 * holderCheck)
		if got := open(streams[1]); !slices.Equal(got, both) {
			t.Errorf("then asked %v", got)
		}
		end()
		for _, a := range streams {
			a.work.Wait()
		}
	})
}
