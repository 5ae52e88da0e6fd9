package engine_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
)

// A tool is given as much time as its last calls make likely to be enough: 30 s at first, none
// once most of its last five calls took longer, and 50 s if it has answered with an image.
func TestLearnedGrace(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		var takes time.Duration
		answer := shim.Reply{Result: json.RawMessage(result)}
		u := &scripted{call: func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			_, err := after(ctx, takes)
			return answer, err
		}}
		p := policy(shim.Auto)
		p.Grace = shim.GraceAuto
		s := w.gateway("a", u, p)

		// graceOf makes a call and reports when it became a task; -1 where it did not.
		graceOf := func(tool string, d time.Duration) time.Duration {
			t.Helper()
			takes = d
			c, begin := call(), time.Now()
			c.Request.Name = tool
			got, err := s.Call(t.Context(), c)
			must(t, err)
			if got.Task == nil {
				return -1
			}
			grace := time.Since(begin)
			must(t, errorOf(s.Wait(t.Context(), c.Principal, "up", got.Task.ID, nil)))
			return grace
		}
		for i, c := range []struct{ takes, want time.Duration }{
			{25 * time.Second, -1}, {90 * time.Second, 30 * time.Second}, // one of two
			{90 * time.Second, 30 * time.Second}, {90 * time.Second, 0}, {time.Second, 0},
			{time.Second, 0}, {time.Second, 0}, {time.Second, -1},
		} {
			if got := graceOf("slow", c.takes); got != c.want {
				t.Errorf("call %d of %v became a task after %v, want %v", i, c.takes, got, c.want)
			}
		}
		if got := graceOf("other", time.Minute); got != 30*time.Second {
			t.Errorf("another tool became a task after %v", got)
		}
		for tool, long := range map[string]string{"picture": "a", "picture of a page": strings.Repeat("a", 1<<20)} {
			answer.Result = json.RawMessage(`{"content":[{"type":"text","text":"` + long + `"},{"type":"image","data":"` + long + `","mimeType":"image/png"}]}`)
			for i, want := range []time.Duration{30 * time.Second, 50 * time.Second, 50 * time.Second} {
				if got := graceOf(tool, 90*time.Second); got != want {
					t.Errorf("%s: call %d of a tool with images became a task after %v, want %v", tool, i, got, want)
				}
			}
		}
	})
}

// A client that comes back with answers is given the learned grace as well.
func TestLearnedGraceOfWhoComesBack(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		takes := 10 * time.Second
		u := &asks{}
		u.call = func(ctx context.Context, _ shim.Request, s shim.Sink) (shim.Reply, error) {
			if _, err := s.Ask(ctx, questions("a")...); err != nil {
				return shim.Reply{}, err
			}
			_, err := after(ctx, takes)
			return shim.Reply{Result: json.RawMessage(result)}, err
		}
		p := policy(shim.Auto)
		p.Grace, p.EarlyInput = shim.GraceAuto, shim.EarlyMRTR
		s := w.gateway("a", u, p)
		c := askable(shim.AskPark)
		c.Handle = true
		for _, slow := range []bool{false, true} {
			if slow {
				takes = time.Minute
			}
			id, begin := parked(t, s, c, "a").ID, time.Now()
			got, err := s.Reattach(t.Context(), c, id, results("a"))
			if err != nil || (got.Task != nil) != slow || time.Since(begin) != min(takes, shim.LearnedGrace) {
				t.Errorf("slow %t: %+v, %v after %v", slow, got, err, time.Since(begin))
			}
		}
	})
}

// A client is asked to poll less often the older a task is, unless the operator says how often.
func TestPollIntervalGrows(t *testing.T) {
	for _, configured := range []time.Duration{0, 3 * time.Second} {
		hours(t, func(t *testing.T, w *world) {
			p := policy(shim.Always)
			p.PollInterval = configured
			s := w.gateway("a", takes(time.Hour), p)
			got, want := begin(t, s, call()), time.Second
			id, start := got.ID, time.Now()
			for polls := 0; ; polls++ {
				switch age := time.Since(start); {
				case configured > 0:
					want = configured
				case age >= 10*time.Minute:
					want = 15 * time.Second
				case age >= time.Minute:
					want = 5 * time.Second
				case age >= 20*time.Second:
					want = 2 * time.Second
				}
				if got.PollInterval != want {
					t.Fatalf("after %v: %v, want %v", time.Since(start), got.PollInterval, want)
				}
				if time.Since(start) > 11*time.Minute {
					break
				}
				pass(got.PollInterval)
				got = read(t, s, id)
			}
		})
	}
}

// A client that has answered a question polls as for a new task until something comes of that.
func TestPollIntervalAfterAnAnswer(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		p := policy(shim.Auto)
		p.PollInterval, p.InputTimeout = 0, time.Hour
		s := w.gateway("a", elicits(time.Hour, "a"), p)
		id := asked(t, s, "a").ID
		want := func(interval time.Duration) {
			t.Helper()
			if got := read(t, s, id).PollInterval; got != interval {
				t.Errorf("poll after %v, want %v", got, interval)
			}
		}
		pass(11 * time.Minute)
		want(15 * time.Second)
		updateTask(t, s, id, results("a"))
		want(time.Second)
		pass(19 * time.Second)
		want(time.Second)
		pass(2 * time.Second)
		want(2 * time.Second)
	})
}
