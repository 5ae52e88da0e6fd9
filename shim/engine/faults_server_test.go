package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// server is a legacy server with one tool, as all replicas reach it. It counts what
// must not happen twice.
type server struct {
	shim.Upstream // nothing else is asked of it

	takes     time.Duration // until it answers, counted from the question's answer if it asks
	asks      bool          // it asks the question "a" first, on the stream of the call
	says      []said        // its progress, counted from the beginning of the call
	resumable bool          // a call can be gone on with from its checkpoint

	mu        sync.Mutex
	runs      int       // executions that have begun
	began     time.Time // the last one
	answered  time.Time // when it got its answer
	answers   []string  // that it got
	now, most int       // connections that wait for the answer, and most at the same time
	cancelled int       // how often it was told
}

// Call implements shim.Upstream.
func (s *server) Call(ctx context.Context, _ shim.Request, sink shim.Sink) (shim.Reply, error) {
	if err := sink.Checkpoint(s.mark(0))(ctx); err != nil {
		return shim.Reply{}, &shim.UpstreamError{Kind: "unreachable", Message: "not sent", Err: err, Unsent: true}
	}
	s.mu.Lock()
	s.runs++
	s.began, s.answered = time.Now(), time.Time{}
	s.mu.Unlock()
	return s.attend(ctx, sink, 0)
}

// Resume implements shim.Upstream.
func (s *server) Resume(ctx context.Context, _ shim.Request, checkpoint json.RawMessage, sink shim.Sink) (shim.Reply, error) {
	if !s.resumable {
		return shim.Reply{}, shim.ErrNotResumable
	}
	var at struct{ At int }
	if err := json.Unmarshal(checkpoint, &at); err != nil {
		return shim.Reply{}, err
	}
	return s.attend(ctx, sink, at.At)
}

// Resumable implements shim.Upstream.
func (s *server) Resumable(json.RawMessage) bool { return s.resumable }

// mark is the checkpoint after the n-th word.
func (s *server) mark(n int) json.RawMessage { return fmt.Appendf(nil, `{"at":%d}`, n) }

// attend is a connection to an execution, from its n-th word on.
func (s *server) attend(ctx context.Context, sink shim.Sink, n int) (shim.Reply, error) {
	s.connected(1)
	defer s.connected(-1)
	reply, err := s.serve(ctx, sink, n)
	if err != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), shim.ErrDetached) {
		s.mu.Lock()
		s.cancelled++
		s.mu.Unlock()
	}
	return reply, err
}

func (s *server) connected(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now += n
	s.most = max(s.most, s.now)
}

func (s *server) serve(ctx context.Context, sink shim.Sink, n int) (shim.Reply, error) {
	s.mu.Lock()
	due := s.began
	s.mu.Unlock()
	for i, word := range s.says {
		due = due.Add(word.after)
		if i < n {
			continue
		}
		if _, err := after(ctx, time.Until(due)); err != nil {
			return shim.Reply{}, err
		}
		sink.Progress(shim.Progress{Progress: float64(i + 1), Message: word.text, Checkpoint: s.mark(i + 1), Raw: fmt.Appendf(nil, `{"progress":%d}`, i+1)})
	}
	if s.asks {
		at, err := s.ask(ctx, sink)
		if ctx.Err() != nil {
			return shim.Reply{}, context.Cause(ctx)
		}
		if err != nil {
			return shim.Reply{Error: &shim.RPCError{Code: -32000, Message: err.Error()}}, nil
		}
		due = at
	}
	if _, err := after(ctx, time.Until(due.Add(s.takes))); err != nil {
		return shim.Reply{}, err
	}
	return shim.Reply{Result: json.RawMessage(result)}, nil
}

// ask asks, unless the execution has its answer, and returns when that came.
func (s *server) ask(ctx context.Context, sink shim.Sink) (time.Time, error) {
	s.mu.Lock()
	at := s.answered
	s.mu.Unlock()
	if !at.IsZero() {
		return at, nil
	}
	answers, err := sink.Ask(ctx, questions("a")...)
	if err != nil {
		return at, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, string(answers[0].Result))
	s.answered = time.Now()
	return s.answered, nil
}

// has reads something of the server.
func has[V any](s *server, v func(*server) V) V {
	s.mu.Lock()
	defer s.mu.Unlock()
	return v(s)
}

// told reports whether the server was told that its call is cancelled, if it has one.
func (s *server) told() bool {
	return has(s, func(s *server) bool { return s.runs == 0 || s.cancelled > 0 })
}

// ran checks that the tool ran once, or up to most times where its policy allows it, and
// never for two replicas at the same time.
func (w *faultWorld) ran(s *server, most int) {
	w.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs > most {
		w.Errorf("the tool ran %d times, want at most %d", s.runs, most)
	}
	if most > 1 && s.most > 1 {
		w.Errorf("the tool ran %d times at the same time", s.most)
	}
}

// wasAnswered checks that the server got the answer, once.
func (w *faultWorld) wasAnswered(s *server) {
	w.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if want := `{"to":"a"}`; len(s.answers) != 1 || s.answers[0] != want {
		w.Errorf("the server got the answers %q, want %s", s.answers, want)
	}
}

// wasAnsweredAtMost checks that the server got no answer twice.
func (w *faultWorld) wasAnsweredAtMost(s *server) {
	w.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.answers) > 1 {
		w.Errorf("the server got the answers %q", s.answers)
	}
}

// TestOldSnapshot: Redis comes back from a snapshot in which a call waits in the queue that has run since. Its
// replica is gone, so the record's word that the call is unsent is all there is, and it is not believed.
func TestOldSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runFaults(t, scenario{"snapshot", func(w *faultWorld) {
			s := &server{takes: 10 * time.Second}
			p := policy(shim.Always)
			p.Concurrency = 1
			a, b := w.pair(s, p)
			w.task(a, call())
			second := w.task(a, call())
			pass(5 * time.Second)
			old := w.memory.Snapshot()
			pass(40 * time.Second)
			w.dies(a)
			pass(75 * time.Second)
			if err := w.memory.Restore(old); err != nil {
				w.Fatal(err)
			}
			pass(90 * time.Second)
			s.mu.Lock()
			defer s.mu.Unlock()
			if got, err := b.Get(w.ctx, anyone, "up", second); err != nil || got.Status != shim.Failed || s.runs != 2 {
				w.Errorf("%s, %v: two calls ran %d times", got.Status, err, s.runs)
			}
		}, false}, &faults{}, 0)
	})
}

// TestForgottenReplica: a replica that writes a task again into an empty Redis is known there before the task is.
func TestForgottenReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runFaults(t, scenario{"forgotten", func(w *faultWorld) {
			s := &server{takes: time.Hour, resumable: true}
			a, _ := w.pair(s, policy(shim.Always))
			id := w.task(a, call())
			pass(20 * time.Second)
			if err := w.memory.Restore(redistest.Content{}); err != nil {
				w.Fatal(err)
			}
			for range 10_000 {
				pass(time.Millisecond)
				known, written := false, false
				for key, hash := range w.memory.Snapshot().Hashes {
					known = known || strings.HasSuffix(key, ":replicas") && hash["a"] != ""
					written = written || strings.HasSuffix(key, ":t:"+string(id))
				}
				if written && !known {
					w.Errorf("nobody would miss the replica of the task")
				}
				if written {
					return
				}
			}
			w.Errorf("the task is not written again")
		}, false}, &faults{}, 0)
	})
}
