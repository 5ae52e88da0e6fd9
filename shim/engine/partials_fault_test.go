package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
)

// While the store is away pieces gather, and then follow in order, each once; also
// where writes took place and only their answers were lost.
func TestPartialsOutlastTheStore(t *testing.T) {
	for name, fault := range map[string]func(*faultyStore, bool){
		"down": func(f *faultyStore, on bool) { f.down.Store(on) },
		"deaf": func(f *faultyStore, on bool) { f.deaf.Store(on) },
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			s := w.gateway("a", says(result, words(time.Second, strings.Fields("a b c d e f g h")...)...), streaming(false))
			task := begin(t, s, partialsCall())
			l := track(t, s, shim.Tracked{ID: task.ID, Pieces: true})
			pass(1500 * time.Millisecond)
			fault(w.store, true)
			pass(2 * time.Second)
			fault(w.store, false)
			pass(time.Minute)
			l.mu.Lock()
			var got []string
			for _, line := range l.lines {
				if n, text, ok := strings.Cut(line, ":"); ok {
					if n != fmt.Sprint(len(got)) {
						t.Errorf("batch %s came as number %d", n, len(got))
					}
					got = append(got, text)
				}
			}
			if all := strings.Join(got, "+"); all != "a+b+c+d+e+f+g+h" {
				t.Errorf("got %q", l.lines)
			}
			l.mu.Unlock()
			must(t, l.ended(t))
		})
	}
}

// A failover of the store that loses the newest batches is made good.
func TestPartialsAreWrittenAgainAfterAFailover(t *testing.T) {
	for name, end := range map[string]bool{"amid the stream": false, "at its end": true} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			messages := words(time.Second, "a", "b", "c")
			if !end {
				messages = append(messages, said{10 * time.Second, "d"})
			}
			s := w.gateway("a", says(`{"content":[{"type":"text","text":"abc"}]}`, messages...), streaming(true))
			task := begin(t, s, call())
			pass(1500 * time.Millisecond) // a is stored
			other := openEmbedded(t)
			w.replicate(task.ID, other)
			pass(1400 * time.Millisecond) // so is b
			if end {
				pass(5 * time.Second)
			}
			w.store.failover.Store(&other)
			pass(time.Minute)
			wantStatus(t, read(t, s, task.ID), shim.Completed)
			wantStored(t, other, task.ID, map[bool]string{true: "a+b+c", false: "a+b+c+d"}[end])
		})
	}
}

// A store that has forgotten the whole record gets it again with the next pieces, and with
// those before as far as they are known.
func TestPartialsOfAForgottenRecord(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := streaming(true)
		p.FoldProgress = false // nothing else is written meanwhile
		s := w.gateway("a", says(`{"content":[{"type":"text","text":"abc"}]}`, append(words(time.Second, "a", "b", "c"), said{time.Minute, "d"})...), p)
		task := begin(t, s, call())
		pass(2500 * time.Millisecond) // a and b are stored
		other := openEmbedded(t)
		w.store.failover.Store(&other)
		pass(10 * time.Second)
		wantStored(t, other, task.ID, "a+b+c")
		pass(2 * time.Minute)
		wantStored(t, other, task.ID, "a+b+c+d")
		wantStatus(t, read(t, s, task.ID), shim.Completed)
	})
}

// Pieces that no record is there for are written with the end of the task: those of an append that is under way when the
// call ends, and those of a task that is kept so briefly that its record is not written again before.
func TestPartialsComeWithTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		holds int // the append that is held until the store has gone back
		ttl   time.Duration
		back  time.Duration // when that is
	}{
		"an append under way": {3, time.Hour, 3500 * time.Millisecond},
		"a short ttl":         {0, 30 * time.Second, 1500 * time.Millisecond},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			held, appends, holds := make(chan struct{}), 0, c.holds
			h := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
				if c.Tail != nil && c.To == "" {
					if appends++; appends == holds {
						<-held
					}
				}
				return next(ctx)
			}}
			p := streaming(false)
			p.TTL = c.ttl
			s := w.over("a", h, says(result, words(time.Second, "a", "b", "c")...), p)
			task := begin(t, s, partialsCall())
			l := track(t, s, shim.Tracked{ID: task.ID, Pieces: true})
			pass(c.back)
			other := openEmbedded(t)
			w.store.failover.Store(&other)
			close(held)
			pass(30 * time.Second) // readers look by themselves
			wantStored(t, other, task.ID, "a+b+c")
			l.want(t, "working 0:a 1:b 2:c completed")
		})
	}
}

// A store that comes back older twice within the time for which an end is kept gets no piece twice, though the first
// time the end has taken along what was stored last before it.
func TestPartialsComeOnceWithTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		older, oldest := openEmbedded(t), openEmbedded(t)
		h := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			if c.To == shim.Completed {
				w.store.failover.CompareAndSwap(nil, &older)
			}
			return next(ctx)
		}}
		s := w.over("a", h, says(result, words(20*time.Second, "a", "b", "c")...), streaming(false)) // a is not known any more when c comes
		task := begin(t, s, partialsCall())
		pass(25 * time.Second)
		w.replicate(task.ID, older)
		pass(40 * time.Second)
		w.store.failover.Store(&oldest)
		pass(time.Minute)
		wantStored(t, older, task.ID, "a+b+c")
		wantStored(t, oldest, task.ID, "")
		wantStatus(t, read(t, s, task.ID), shim.Completed)
	})
}

// begun is a task of a replica that is gone, which has said something.
func (w *world) begun(said string) shim.ID {
	w.t.Helper()
	id := shim.NewID()
	must(w.t, w.store.Beat(w.t.Context(), "gone", time.Second))
	if _, err := w.store.Create(w.t.Context(), shim.Task{
		ID: id, Op: "op", Upstream: "up", Visible: true, TTL: time.Hour, Retain: time.Hour,
		Lease: shim.Lease{Replica: "gone"}, Method: "tools/call", Tool: "slow", Checkpoint: json.RawMessage(`{"at":1}`),
		Call: json.RawMessage(`{"request":{"method":"tools/call","name":"slow","session":{}},"runs":1,"partials":true}`),
	}, shim.Batch{Content: fmt.Appendf(nil, `[{"type":"text","text":%q}]`, said)}); err != nil {
		w.t.Fatal(err)
	}
	return id
}

// Who adopts a task goes on with its stream where the record has come to.
func TestAdoptedPartials(t *testing.T) {
	for name, content := range map[string]bool{"hints": false, "content": true} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			resumed := &scripted{resume: func(ctx context.Context, _ shim.Request, cp json.RawMessage, s shim.Sink) (shim.Reply, error) {
				if string(cp) != `{"at":1}` {
					return shim.Reply{}, errors.New("resumed at " + string(cp))
				}
				_, err := after(ctx, time.Second)
				s.Progress(shim.Progress{Progress: 2, Message: " you", Checkpoint: json.RawMessage(`{"at":2}`)})
				return shim.Reply{Result: json.RawMessage(`{"content":[{"type":"text","text":"Hello you!"}]}`)}, err
			}}
			id := w.begun("Hello")
			s := w.gateway("a", resumed, streaming(content))
			l := track(t, s, shim.Tracked{ID: id, Pieces: true})
			pass(time.Minute)
			l.want(t, "0:Hello working 1: you completed")
			wantResult(t, s, id, `{"content":[{"type":"text","text":"Hello you!"}]}`)
		})
	}
}

// The checkpoint of the record is never ahead of the pieces, whenever the replica
// dies: resuming there repeats nothing and skips nothing.
func TestCheckpointGoesWithItsPieces(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", says(result, words(70*time.Millisecond, strings.Fields("a b c d e f g h i j k l m n o p")...)...), streaming(true))
		task := begin(t, s, call())
		for range 120 {
			pass(10 * time.Millisecond)
			now, err := w.store.Get(t.Context(), task.ID, shim.WithRun)
			if err != nil || now.Status.Final() {
				break
			}
			batches, _ := w.store.Batches(t.Context(), task.ID, 0)
			pieces := 0
			for _, b := range batches {
				pieces += strings.Count(texts(b), "+") + 1
			}
			if at := string(now.Checkpoint); pieces > 0 && at != fmt.Sprintf(`{"at":%d}`, pieces) {
				t.Fatalf("the record resumes at %s with %d pieces", at, pieces)
			}
		}
	})
}

// Pieces that go to the record with a question take their checkpoint along: an adopter repeats none of them.
func TestCheckpointGoesWithAQuestion(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			for i, text := range []string{"a", "b"} {
				s.Progress(shim.Progress{Progress: float64(i + 1), Message: text, Checkpoint: fmt.Appendf(nil, `{"at":%d}`, i+1)})
				if _, err := after(ctx, 10*time.Millisecond); err != nil {
					return shim.Reply{}, err
				}
			}
			_, err := s.Ask(ctx, questions("a")...)
			return shim.Reply{}, err
		}}
		c := call()
		c.Asking = shim.AskPark
		task := begin(t, w.gateway("a", u, streaming(true)), c)
		pass(time.Minute)
		now, err := w.store.Get(t.Context(), task.ID, shim.WithRun)
		if err != nil || now.Position != 2 || string(now.Checkpoint) != `{"at":2}` {
			t.Errorf("the record resumes at %s with %d pieces (%v)", now.Checkpoint, now.Position, err)
		}
	})
}

// What is over the bound is left out, and the reader is told.
func TestPartialsAreBounded(t *testing.T) {
	texts := strings.Fields("a b c d e f")
	for name, c := range map[string]struct {
		bound func(*shim.Partials)
		want  string
	}{
		"hints by number": {func(p *shim.Partials) { p.Most = 3 },
			"0:a 1:b 2:[further partial results are left out: the limit for this task is reached] completed"},
		"hints by size": {func(p *shim.Partials) { p.MostBytes = 60 },
			"0:a 1:b 2:[further partial results are left out: the limit for this task is reached] completed"},
	} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			p := streaming(false)
			c.bound(&p.Partials)
			s := w.gateway("a", says(`{"content":[{"type":"text","text":"abcdef"}]}`, words(time.Second, texts...)...), p)
			task := begin(t, s, partialsCall())
			pass(time.Minute)
			track(t, s, shim.Tracked{ID: task.ID, Pieces: true}).want(t, c.want)
		})
	}
}

// Pieces that cannot be stored for long take a bounded room, and are missed where they would have been:
// the next piece says so, or the end of the task where there is none.
func TestPartialsWaitInBoundedRoom(t *testing.T) {
	const missed = "[2 partial results are left out: they came faster than they could be stored]"
	for name, c := range map[string]struct {
		more []said
		want string
	}{"amid the stream": {words(30*time.Second, "z"), missed + "+z completed"}, "at its end": {nil, missed + " completed"}} {
		bubbleOf(t, name, func(t *testing.T, w *world) {
			big := strings.Repeat("x", 300<<10)
			messages := append(words(100*time.Millisecond, "a", big, big, big, big, big), c.more...)
			s := w.gateway("a", says(result, messages...), streaming(false))
			task := begin(t, s, partialsCall())
			pass(150 * time.Millisecond)
			w.store.down.Store(true)
			pass(2 * time.Second)
			w.store.down.Store(false)
			pass(time.Minute)
			l := track(t, s, shim.Tracked{ID: task.ID, Pieces: true})
			l.mu.Lock()
			defer l.mu.Unlock()
			all := strings.ReplaceAll(strings.Join(l.lines, " "), big, "X")
			if !strings.HasSuffix(all, c.want) || strings.Count(all, "X") != 3 {
				t.Errorf("got %s", all)
			}
		})
	}
}

// What was shown of a run keeps it from being run again, whoever allowed it.
func TestNoSecondRunAfterPartials(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := streaming(false)
		p.Retry = true
		id := w.begun("a")
		u := takes(0)
		s := w.gateway("a", u, p)
		pass(time.Minute)
		if got := read(t, s, id); got.Status != shim.Failed || u.calls.Load() != 0 {
			t.Errorf("%s after %d calls", got.Status, u.calls.Load())
		}
	})
}

// A partial costs one write, and one read of each follower that shows partials. Nothing reads the record, or
// is done for those who only follow or wait.
func TestWhatAPartialCosts(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := streaming(true)
		p.FoldProgress = false
		s := w.gateway("a", says(result, words(100*time.Millisecond, make([]string, 5)...)...), policy(shim.Always))
		loud := w.gateway("b", says(result, words(100*time.Millisecond, strings.Fields("a b c d e f g h i j k l m n o p q r s t u v w x y z")...)...), p)
		quiet := begin(t, s, call())
		task := begin(t, loud, call())
		l := track(t, s, shim.Tracked{ID: quiet.ID, Pieces: true}, shim.Tracked{ID: task.ID, Pieces: true})
		_ = follow(t, s, anyone, task.ID)
		go func() { _, _ = s.Wait(t.Context(), anyone, "up", task.ID, nil) }()
		pass(1050 * time.Millisecond) // all are at rest, but for the partials
		ops, reads, appends := w.store.ops.Load(), w.store.reads.Load(), w.store.appends.Load()
		pass(time.Second)
		if o, r, a := w.store.ops.Load()-ops, w.store.reads.Load()-reads, w.store.appends.Load()-appends; o != 0 || r != 10 || a != 10 {
			t.Errorf("10 partials took %d operations on records, %d reads and %d appends", o, r, a)
		}
		l.leave()
	})
}

// A reader that is so slow that the task has gone is told that it missed something.
func TestTrackTellsWhatIsGone(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		p := streaming(true)
		p.TTL = 10 * time.Second
		s := w.gateway("a", says(result, words(time.Second, "a", "b", "c")...), p)
		task := begin(t, s, call())
		gate, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- s.Track(t.Context(), anyone, "up", []shim.Tracked{{ID: task.ID, Pieces: true}}, func(shim.Update) error {
				<-gate
				return nil
			})
		}()
		pass(5 * time.Minute)
		close(gate)
		if err := <-done; !errors.Is(err, shim.ErrBehind) {
			t.Errorf("got %v", err)
		}
	})
}

// A checkpoint that is held up on its way to the store, while the server goes on and more
// is stored, does not take the place where the call is resumed back: whoever went on there
// would hear again what has been told.
func TestHeldUpCheckpointIsOld(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		held := make(chan struct{})
		h := &hooked{apply: func(ctx context.Context, c shim.Change, next func(context.Context) (shim.Task, error)) (shim.Task, error) {
			if string(c.Checkpoint) == `"asked"` {
				<-held
			}
			return next(ctx)
		}}
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			if err := s.Checkpoint(json.RawMessage(`"sent"`))(ctx); err != nil {
				return shim.Reply{}, err
			}
			s.Progress(shim.Progress{Progress: 1, Message: "a", Checkpoint: json.RawMessage(`"after a"`)})
			_, _ = after(ctx, time.Second)
			go func() { _ = s.Checkpoint(json.RawMessage(`"asked"`))(ctx) }()
			_, _ = after(ctx, time.Second)
			s.Progress(shim.Progress{Progress: 2, Message: "b", Checkpoint: json.RawMessage(`"after b"`)})
			return after(ctx, time.Hour)
		}}
		s := w.over("a", h, u, streaming(false))
		task := begin(t, s, partialsCall())
		pass(3 * time.Second)
		close(held)
		pass(time.Second)
		got, err := w.store.Get(t.Context(), task.ID, shim.WithRun)
		must(t, err)
		if string(got.Checkpoint) != `"after b"` || got.Position != 2 {
			t.Errorf("the call is resumed at %s, and %d batches are stored", got.Checkpoint, got.Position)
		}
	})
}

// A checkpoint takes along what the store has lost of the pieces before it: whoever
// resumes there does not hear those again.
func TestCheckpointAfterAFailover(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			if err := s.Checkpoint(json.RawMessage(`"sent"`))(ctx); err != nil {
				return shim.Reply{}, err
			}
			for i, text := range []string{"a", "b"} {
				s.Progress(shim.Progress{Progress: float64(i), Message: text, Checkpoint: json.RawMessage(`"after ` + text + `"`)})
				_, _ = after(ctx, time.Second)
			}
			_, _ = after(ctx, time.Second)
			if err := s.Checkpoint(json.RawMessage(`"asked"`))(ctx); err != nil {
				return shim.Reply{}, err
			}
			return after(ctx, time.Hour)
		}}
		s := w.gateway("a", u, streaming(false))
		task := begin(t, s, partialsCall())
		pass(500 * time.Millisecond) // a is stored
		other := openEmbedded(t)
		w.replicate(task.ID, other)
		pass(time.Second) // so is b
		w.store.failover.Store(&other)
		pass(3 * time.Second)
		got, err := other.Get(t.Context(), task.ID, shim.WithRun)
		must(t, err)
		if string(got.Checkpoint) != `"asked"` || got.Position != 2 {
			t.Errorf("the call is resumed at %s, and %d batches are stored", got.Checkpoint, got.Position)
		}
	})
}
