package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// large is the size of the results in these tests.
const large = 100 << 10

// saysLarge answers with a large result after d.
func saysLarge(d time.Duration) *scripted {
	return &scripted{call: sending(func(ctx context.Context, _ shim.Request, _ shim.Sink) (shim.Reply, error) {
		reply, err := after(ctx, d)
		if err == nil {
			reply.Result = json.RawMessage(`{"content":[{"type":"text","text":"` + strings.Repeat("x", large) + `"}]}`)
		}
		return reply, err
	})}
}

// keeping is a replica with bounds for what is kept after the end.
func (w *world) keeping(u shim.Upstream, p shim.Policy, most, mostPerOwner int64) *engine.Shim {
	return w.gatewayOf("a", serves(u, p), func(o *engine.Options) { o.MaxKeptBytes, o.MaxKeptBytesPerOwner = most, mostPerOwner })
}

// ownedBy is call by somebody.
func ownedBy(who string) shim.Call {
	c := call()
	c.Principal = shim.Principal{Subject: who}
	return c
}

// readAs reads a task of somebody.
func readAs(t *testing.T, s *engine.Shim, who string, id shim.ID) shim.Task {
	t.Helper()
	got, err := s.Get(t.Context(), shim.Principal{Subject: who}, "up", id)
	must(t, err)
	return got
}

// Beyond the bytes that are kept for a caller, a new slow call blocks, one that must be a task is refused, and
// others go on. No result goes before its time, and then there is room again.
func TestKeptResultsAreBounded(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		p := policy(shim.Auto)
		p.Grace = time.Second
		s := w.keeping(saysLarge(2*time.Second), p, 10*large, 2*large+large/2)
		var kept []shim.Task
		for range 2 {
			kept = append(kept, begin(t, s, ownedBy("mallory")))
			pass(time.Minute)
			wantStatus(t, readAs(t, s, "mallory", kept[len(kept)-1].ID), shim.Completed)
		}
		demand := ownedBy("mallory")
		demand.Demand = true
		var busy *shim.BusyError
		if _, err := s.Call(t.Context(), demand); !errors.As(err, &busy) || busy.Key != "max_kept_bytes_per_owner" {
			t.Errorf("a call that must be a task: %v", err)
		}
		if a, err := s.Call(t.Context(), ownedBy("mallory")); err != nil || a.Task != nil || len(a.Reply.Result) < large {
			t.Errorf("a slow call beyond the bound: %v, task %v", err, a.Task)
		}
		honest := begin(t, s, ownedBy("honest"))
		pass(time.Minute)
		wantStatus(t, readAs(t, s, "honest", honest.ID), shim.Completed)
		pass(time.Hour - 6*time.Minute)
		for _, one := range kept {
			if got := readAs(t, s, "mallory", one.ID); got.Outcome == nil {
				t.Error("a result has gone before its time")
			}
		}
		pass(6 * time.Minute)
		again := begin(t, s, demand)
		pass(time.Minute)
		wantStatus(t, readAs(t, s, "mallory", again.ID), shim.Completed)
	})
}

// Calls that end together do not pass the bound together; those that wait can be cancelled, end with their call's
// time limit, and are written when the replica halts.
func TestEndsWaitForRoom(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		p := policy(shim.Always)
		p.Timeout = 10 * time.Minute
		s := w.keeping(saysLarge(time.Second), p, 6*large, 6*large)
		var tasks []shim.Task
		for range 8 {
			tasks = append(tasks, begin(t, s, ownedBy("mallory")))
		}
		pass(time.Minute)
		count := func(status shim.Status) (ids []shim.ID) {
			for _, one := range tasks {
				if readAs(t, s, "mallory", one.ID).Status == status {
					ids = append(ids, one.ID)
				}
			}
			return ids
		}
		if m := readAs(t, s, "mallory", count(shim.Working)[0]).StatusMessage; !strings.Contains(m, "waits") {
			t.Errorf("a task whose result waits says %q", m)
		}
		if done, waits := count(shim.Completed), count(shim.Working); len(done) != 1 || len(waits) != 7 {
			t.Fatalf("%d of 8 are kept, %d wait", len(done), len(waits))
		}
		_, err := s.Cancel(t.Context(), shim.Principal{Subject: "mallory"}, "up", count(shim.Working)[0])
		must(t, err)
		pass(time.Second)
		if gone := count(shim.Cancelled); len(gone) != 1 {
			t.Errorf("%d are cancelled", len(gone))
		}
		pass(10 * time.Minute)
		if done, failed := count(shim.Completed), count(shim.Failed); len(done) != 2 || len(failed) != 5 {
			t.Errorf("%d are kept, and %d have failed, after one has made room", len(done), len(failed))
		}
		last := begin(t, s, ownedBy("honest"))
		pass(time.Minute)
		wantStatus(t, readAs(t, s, "honest", last.ID), shim.Completed)
	})
}

// What tasks stream counts while they run. Beyond the bound further pieces are left out, which the last one says; other
// callers have theirs.
func TestPiecesAreBounded(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		p := streaming(false)
		p.Timeout = time.Hour
		s := w.keeping(says(result, words(time.Second, slices.Repeat([]string{strings.Repeat("x", large/2)}, 10)...)...), p, 20*large, 2*large)
		var all []*listening
		for _, who := range []string{"mallory", "mallory", "mallory", "honest"} {
			c := ownedBy(who)
			c.Partials = true
			all = append(all, trackAs(t, s, c.Principal, shim.Tracked{ID: begin(t, s, c).ID, Pieces: true}))
		}
		pass(time.Minute)
		read := func(of ...*listening) (pieces int, limited bool) {
			for _, l := range of {
				l.mu.Lock()
				text := strings.Join(l.lines, " ")
				l.mu.Unlock()
				pieces += strings.Count(text, "x") / (large / 2)
				limited = limited || strings.Contains(text, "at its limit")
			}
			return pieces, limited
		}
		if n, limited := read(all[:3]...); n > 4 || n < 2 || !limited {
			t.Errorf("one caller has %d pieces, and hears of the limit: %t", n, limited)
		}
		if n, limited := read(all[3]); n != 10 || limited {
			t.Errorf("another caller has %d pieces, and hears of the limit: %t", n, limited)
		}
	})
}

// Large questions count. Beyond the bound a further one is refused, and the call goes on; small ones, and those to other
// callers, are asked.
func TestQuestionsAreBounded(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		p := policy(shim.Always)
		p.Timeout, p.InputTimeout = time.Hour, time.Hour
		size := 0
		u := &scripted{call: sending(func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			_, err := s.Ask(ctx, shim.Question{Key: "q", Method: "elicitation/create", Params: json.RawMessage(`{"message":"` + strings.Repeat("x", size) + `"}`)})
			if errors.Is(err, shim.ErrNoAsk) {
				err = nil
			}
			return shim.Reply{Result: json.RawMessage(result)}, err
		})}
		s := w.keeping(u, p, 20*large, 6*large)
		asked := func(who string, n int) (asking int) {
			for range n {
				c := ownedBy(who)
				c.Asking = shim.AskPark
				task := begin(t, s, c)
				pass(time.Second)
				if readAs(t, s, who, task.ID).Status == shim.InputRequired {
					asking++
				}
			}
			return asking
		}
		size = large
		if n := asked("mallory", 3); n != 1 {
			t.Errorf("%d large questions of one caller are asked", n)
		}
		if n := asked("honest", 1); n != 1 {
			t.Error("another caller is not asked")
		}
		size = 1000
		if n := asked("mallory", 3); n != 3 {
			t.Errorf("%d small questions are asked", n)
		}
	})
}

// What the store has of ended tasks at the start counts.
func TestKeptBeforeTheStart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.gatewayOf("a", serves(saysLarge(time.Second), policy(shim.Required)), func(o *engine.Options) {
			o.MaxKeptBytes, o.MaxKeptBytesPerOwner = 10*large, 10*large
			o.Kept = []shim.KeptTask{{Share: shim.Share{Owner: "mallory"}, Bytes: 5 * large, Until: time.Now().Add(time.Minute)}}
		})
		var busy *shim.BusyError
		if _, err := s.Call(t.Context(), ownedBy("mallory")); !errors.As(err, &busy) {
			t.Errorf("beyond the bound: %v", err)
		}
		pass(time.Minute)
		begin(t, s, ownedBy("mallory"))
		pass(2 * time.Second)
	})
}

// So it is with a question outside of any call: it is refused before it has a record.
func TestSessionQuestionsAreBounded(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		s := w.keeping(elicits(0, "a"), policy(shim.Auto), 5*large, 5*large)
		checkpoint := json.RawMessage(`{"message":"` + strings.Repeat("x", large) + `"}`)
		ask := func() error {
			_, err := s.AskSession(t.Context(), sessionQuestion(), checkpoint, func(shim.ID, bool) {})
			return err
		}
		if err := ask(); err != nil {
			t.Error(err)
		}
		if err := ask(); !errors.Is(err, shim.ErrNoAsk) {
			t.Errorf("a second one beyond the bound: %v", err)
		}
		pass(time.Hour)
		if err := ask(); err != nil {
			t.Errorf("after the first has run out of time: %v", err)
		}
		pass(time.Hour)
	})
}
