package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim"
	"taskgate/shim/engine"
)

// says sends messages as progress, each after its pause, and then answers.
func says(answer string, messages ...said) *scripted {
	return &scripted{call: sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
		for i, m := range messages {
			if _, err := after(ctx, m.after); err != nil {
				return shim.Reply{}, err
			}
			s.Progress(shim.Progress{Progress: float64(i + 1), Message: m.text, Checkpoint: fmt.Appendf(nil, `{"at":%d}`, i+1)})
		}
		_, err := after(ctx, time.Millisecond)
		return shim.Reply{Result: json.RawMessage(answer)}, err
	})}
}

// said is a progress message and how long it is waited for.
type said struct {
	after time.Duration
	text  string
}

// words are messages that come this long after another.
func words(pause time.Duration, texts ...string) []said {
	var out []said
	for _, t := range texts {
		out = append(out, said{pause, t})
	}
	return out
}

// streaming is a policy with the batching of the configuration's default.
func streaming(content bool) shim.Policy {
	p := policy(shim.Always)
	p.Partials = shim.Partials{Content: content, Interval: 50 * time.Millisecond, Bytes: 64 << 10, Most: 10_000, MostBytes: 8 << 20}
	return p
}

// listening is one Track or FollowSet under way: what it has yielded, one line each, as the
// texts of the pieces or the status, and the states.
type listening struct {
	leave context.CancelFunc
	done  chan error
	mu    sync.Mutex
	lines []string
	tasks []shim.Task
}

func track(t *testing.T, s *engine.Shim, tasks ...shim.Tracked) *listening {
	t.Helper()
	return trackAs(t, s, anyone, tasks...)
}

func trackAs(t *testing.T, s *engine.Shim, p shim.Principal, tasks ...shim.Tracked) *listening {
	t.Helper()
	return listen(t, nil, func(ctx context.Context, yield func(shim.Update) error) error {
		return s.Track(ctx, p, "up", tasks, yield)
	})
}

// followSet follows a set. In the lines tasks are told by their place in ids.
func followSet(t *testing.T, set shim.Set, ids ...shim.ID) *listening {
	t.Helper()
	return listen(t, ids, set.Follow)
}

func listen(t *testing.T, ids []shim.ID, follow func(context.Context, func(shim.Update) error) error) *listening {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	l := &listening{leave: leave, done: make(chan error, 1)}
	status := map[shim.ID]shim.Status{} // a status message that changes is not of interest
	go func() {
		l.done <- follow(ctx, func(u shim.Update) error {
			l.mu.Lock()
			defer l.mu.Unlock()
			name := ""
			if ids != nil {
				name = string(rune('a'+slices.Index(ids, u.ID))) + ":"
			}
			if u.Gone {
				l.lines = append(l.lines, name+"gone")
			}
			if u.Task != nil && (u.Task.Status != status[u.ID] || u.Task.Status.Final()) {
				l.lines, l.tasks = append(l.lines, name+string(u.Task.Status)), append(l.tasks, *u.Task)
				status[u.ID] = u.Task.Status
			}
			for i, p := range u.Pieces {
				l.lines = append(l.lines, fmt.Sprintf("%s%d:%s", name, u.First+int64(i), texts(p)))
			}
			return nil
		})
	}()
	synctest.Wait()
	return l
}

// texts are the texts of a block, or of an array of blocks.
func texts(piece json.RawMessage) string {
	if text, ok := jsonrpc.GetString(piece, "text"); ok {
		return text
	}
	var all []string
	for b := range jsonrpc.Elements(piece) {
		text, _ := jsonrpc.GetString(b, "text")
		all = append(all, text)
	}
	return strings.Join(all, "+")
}

// wantStored checks the texts that a store has of a task.
func wantStored(t *testing.T, store shim.Store, id shim.ID, want string) {
	t.Helper()
	batches, err := store.Batches(t.Context(), id, 0)
	var all []string
	for _, b := range batches {
		all = append(all, texts(b))
	}
	if got := strings.Join(all, "+"); err != nil || got != want {
		t.Errorf("stored are %q, %v; want %q", got, err, want)
	}
}

// want checks what was yielded since the last time, lines separated by spaces.
func (l *listening) want(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := strings.Join(l.lines, " "); got != want {
		t.Errorf("yielded %q, want %q", got, want)
	}
	l.lines = nil
}

func (l *listening) ended(t *testing.T) error {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-l.done:
		return err
	default:
		t.Fatal("still tracking")
		return nil
	}
}

func partialsCall() shim.Call {
	c := call()
	c.Partials = true
	return c
}

// The first piece of a burst goes at once, the others in one batch after the
// interval; what is left at the end comes before the end, on any replica.
func TestPartialsAreBatched(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		burst := append(words(time.Second, "a", "e"), words(10*time.Millisecond, "f", "g")...)
		burst = append(burst[:1:1], append(words(10*time.Millisecond, "b", "c", "d"), burst[1:]...)...)
		s := w.gateway("a", says(result, burst...), streaming(false))
		other := w.gateway("b", takes(0), policy(shim.Always))
		task := begin(t, s, partialsCall())
		l := track(t, other, shim.Tracked{ID: task.ID, Pieces: true})
		l.want(t, "working")
		pass(time.Second)
		l.want(t, "0:a")
		pass(49 * time.Millisecond)
		l.want(t, "")
		pass(time.Millisecond)
		l.want(t, "1:b+c+d")
		pass(10 * time.Second)
		l.want(t, "2:e 3:f+g completed")
		must(t, l.ended(t))
		late := track(t, other, shim.Tracked{ID: task.ID, Pieces: true, From: 2})
		late.want(t, "2:e 3:f+g completed")
		must(t, late.ended(t))
	})
}

// Who reads a task for the first time after its end has none of its pieces, if it only
// wants those of a task that runs (P2). Who began to read before has all of them.
func TestPartialsAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gateway("a", says(result, words(time.Second, "a", "b")...), streaming(false))
		task := begin(t, s, partialsCall())
		live := shim.Tracked{ID: task.ID, Pieces: true, Live: true}
		l := track(t, s, live)
		pass(10 * time.Second)
		l.want(t, "working 0:a 1:b completed")
		late := track(t, s, live)
		late.want(t, "completed")
		must(t, late.ended(t))
	})
}

// Without batching each piece is a batch.
func TestPartialsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := streaming(false)
		p.Partials.Interval, p.Partials.Bytes = 0, 0
		s := w.gateway("a", says(result, words(time.Millisecond, "a", "b", "c")...), p)
		task := begin(t, s, partialsCall())
		l := track(t, s, shim.Tracked{ID: task.ID, Pieces: true})
		pass(10 * time.Second)
		l.want(t, "working 0:a 1:b 2:c completed")
	})
}

// What came before the handle is what the task begins with.
func TestPartialsBeforeTheHandle(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := streaming(false)
		p.Tasks = shim.Auto
		s := w.gateway("a", says(result, words(2*time.Second, "a", "b", "c")...), p)
		task := begin(t, s, partialsCall())
		l := track(t, s, shim.Tracked{ID: task.ID, Pieces: true})
		l.want(t, "0:a+b working")
		pass(10 * time.Second)
		l.want(t, "1:c completed")
	})
}

// A client that did not opt in has nothing stored for it but the status message,
// unless the pieces are content.
func TestNoPartialsUnasked(t *testing.T) {
	for content, want := range map[bool]string{false: "completed", true: "0:a 1:b completed"} {
		bubble(t, func(t *testing.T, w *world) {
			s := w.gateway("a", says(result, words(time.Second, "a", "b")...), streaming(content))
			task := begin(t, s, call())
			pass(1500 * time.Millisecond)
			if now, err := s.Peek(t.Context(), anyone, "up", task.ID); err != nil || now.StatusMessage != "a" {
				t.Errorf("status message %q, %v", now.StatusMessage, err)
			}
			pass(10 * time.Second)
			l := track(t, s, shim.Tracked{ID: task.ID, Pieces: true})
			l.want(t, want)
		})
	}
}
