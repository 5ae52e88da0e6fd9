package shimtest

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
)

// statuses are all of them.
var statuses = []shim.Status{shim.Working, shim.InputRequired, shim.Completed, shim.Failed, shim.Cancelled}

var applyCases = []storeCase{
	{"Apply/follows the state machine", func(t *storeTest) {
		for _, from := range statuses {
			for _, to := range statuses {
				task := t.create(func(k *shim.Task) { k.Status = from })
				got, err := t.b.Apply(t.ctx, task.ID, nil, shim.Change{Op: "x", To: to})
				if allowed := contains(to.From(), from); allowed {
					t.ok(err)
					t.same(to, got.Status)
					t.same(task.Version+1, got.Version)
				} else {
					t.is(err, shim.ErrFinal)
					t.same(task, got)
				}
				t.same(got, t.get(task.ID, shim.Summary))
			}
		}
	}},
	{"Apply/again does nothing", func(t *storeTest) {
		task := t.create(nil)
		for _, c := range []shim.Change{
			{Op: "1", StatusMessage: pointer("one")},
			{Op: "2", To: shim.InputRequired},
			{Op: "3", To: shim.Completed, Outcome: &shim.Outcome{Result: json.RawMessage(`1`)}, Tail: []shim.Batch{batch("[1]")}},
		} {
			first := t.apply(task, c)
			again, err := t.b.Apply(t.ctx, task.ID, &held, c)
			t.ok(err)
			t.same(first, again)
			nobody, err := t.b.Apply(t.ctx, task.ID, nil, c)
			t.ok(err)
			t.same(first, nobody)
		}
		t.stored(task.ID, "[1]")
	}},
	{"Apply/again after other changes that name no op", func(t *storeTest) {
		task := t.create(nil)
		t.apply(task, shim.Change{Op: "1", StatusMessage: pointer("one")})
		after, err := t.b.Apply(t.ctx, task.ID, &held, shim.Change{Checkpoint: json.RawMessage("7")})
		t.ok(err)
		again, err := t.b.Apply(t.ctx, task.ID, &held, shim.Change{Op: "1", StatusMessage: pointer("one")})
		t.ok(err)
		t.same(after, again)
	}},
	{"Apply/needs an op", func(t *storeTest) {
		task := t.create(nil)
		for _, c := range []shim.Change{{To: shim.Failed}, {StatusMessage: pointer("")}, {Visible: true}, {Take: []string{"q"}}} {
			if _, err := t.a.Apply(t.ctx, task.ID, nil, c); err == nil {
				t.Errorf("%+v: applied", c)
			}
		}
		t.same(task, t.get(task.ID, shim.Summary))
	}},
	{"Apply/only under the lease", func(t *storeTest) {
		task := t.create(nil)
		for _, l := range []shim.Lease{{Replica: "other"}, {Replica: runner, Adoption: 1}, {}} {
			_, err := t.b.Apply(t.ctx, task.ID, &l, shim.Change{Op: "x", To: shim.Failed})
			t.is(err, shim.ErrLeaseLost)
			_, err = t.b.Apply(t.ctx, task.ID, &l, shim.Change{Checkpoint: json.RawMessage("1")})
			t.is(err, shim.ErrLeaseLost)
		}
		t.same(task, t.get(task.ID, shim.Summary))
		got, err := t.b.Apply(t.ctx, task.ID, nil, shim.Change{Op: "x", To: shim.Cancelled})
		t.ok(err)
		t.same(shim.Cancelled, got.Status)
	}},
	{"Apply/nothing after the end", func(t *storeTest) {
		for _, end := range []shim.Status{shim.Completed, shim.Failed, shim.Cancelled} {
			task := t.create(func(k *shim.Task) { k.Questions = []shim.Question{{Key: "q"}} })
			ended := t.apply(task, shim.Change{To: end})
			whole := t.get(task.ID, shim.WithRun)
			for _, c := range []shim.Change{
				{Op: "1", To: shim.Working}, {Op: "2", StatusMessage: pointer("x")}, {Op: "3", Visible: true},
				{Ask: []shim.Question{{Key: "r"}}}, {Withdraw: []string{"q"}},
				{Answer: map[string]json.RawMessage{"q": json.RawMessage("1")}}, {Op: "4", Take: []string{"q"}},
				{TTL: 100 * time.Hour}, {Retain: time.Second}, {Checkpoint: json.RawMessage("1")}, {Tail: []shim.Batch{batch("[1]")}},
			} {
				for _, lease := range []*shim.Lease{nil, &held, {Replica: "late"}} {
					got, err := t.b.Apply(t.ctx, task.ID, lease, c)
					t.is(err, shim.ErrFinal)
					t.same(ended, got)
				}
			}
			t.same(whole, t.get(task.ID, shim.WithRun))
			t.stored(task.ID)
		}
	}},
	{"Apply/the end drops the arguments, unless it keeps them", func(t *storeTest) {
		arguments := json.RawMessage(`{"n": 1.0}`)
		for _, keep := range []bool{true, false} {
			task := t.create(func(k *shim.Task) { k.Arguments = arguments })
			t.apply(task, shim.Change{Op: "1", StatusMessage: pointer("runs"), KeepArguments: true})
			t.same(arguments, t.get(task.ID, shim.WithAll).Arguments)
			t.apply(task, shim.Change{Op: "2", To: shim.Failed, KeepArguments: keep})
			t.same(keep, t.get(task.ID, shim.WithAll).Arguments != nil)
		}
	}},
	{"NoteRerun/keeps the first", func(t *storeTest) {
		_, err := t.a.NoteRerun(t.ctx, newTask().ID, "x")
		t.is(err, shim.ErrNotFound)
		task := t.create(nil)
		ended := t.apply(task, shim.Change{To: shim.Failed})
		for _, as := range []shim.ID{"one", "one", "two"} {
			first, err := t.b.NoteRerun(t.ctx, task.ID, as)
			t.ok(err)
			t.same(shim.ID("one"), first)
		}
		t.same(shim.ID("one"), t.get(task.ID, shim.WithTimeline).RerunAs)
		t.same(shim.ID("one"), t.get(task.ID, shim.WithAll).RerunAs)
		t.same(ended, t.get(task.ID, shim.Summary))
	}},
	{"Apply/message", func(t *storeTest) {
		task := t.create(nil)
		t.same("two", t.apply(task, shim.Change{StatusMessage: pointer("two")}).StatusMessage)
		t.same("two", t.apply(task, shim.Change{TTL: 2 * time.Hour}).StatusMessage)
		t.same("", t.apply(task, shim.Change{StatusMessage: pointer("")}).StatusMessage)
	}},
	{"Apply/outcome", func(t *storeTest) {
		for _, o := range []*shim.Outcome{
			{Result: json.RawMessage("{\"a\": 1.0,\r\n \"b\":\"\\u003c<\"}")},
			{Result: json.RawMessage(`{"isError":true}`), IsError: true},
			{Error: json.RawMessage(`{"code":-32603,"message":"x"}`)},
			nil,
		} {
			task := t.create(nil)
			got := t.apply(task, shim.Change{To: shim.Completed, Outcome: o})
			t.same((*shim.Outcome)(nil), got.Outcome)
			t.same(o != nil && o.IsError, got.ToolError)
			t.same(o != nil && o.IsError, t.get(task.ID, shim.Summary).ToolError)
			t.same((*shim.Outcome)(nil), t.get(task.ID, shim.WithRun).Outcome)
			t.same(o, t.get(task.ID, shim.WithOutcome).Outcome)
			var size int64
			if o != nil {
				size = int64(len(o.Result) + len(o.Error))
			}
			t.same(size, t.get(task.ID, shim.Summary).OutcomeSize)
		}
	}},
	{"Apply/any bytes, also many", func(t *storeTest) {
		var all strings.Builder
		for i := range 256 {
			all.WriteByte(byte(i))
		}
		large := 2 << 20 // as of the largest max_result, 32 MiB
		if testing.Short() {
			large >>= 4
		}
		for _, body := range []string{all.String(), strings.Repeat("0123456789abcdef", large)} {
			task := t.create(nil, batch(all.String()))
			c := shim.Change{Op: all.String(), To: shim.Completed, StatusMessage: pointer(all.String()), Outcome: &shim.Outcome{Result: json.RawMessage(body)}}
			got, err := t.a.Apply(t.ctx, task.ID, &held, c)
			t.ok(err)
			t.same(all.String(), got.StatusMessage)
			read := t.get(task.ID, shim.WithOutcome)
			switch {
			case read.Outcome == nil:
				t.Fatalf("no outcome of %d bytes: %+v", len(body), read)
			case string(read.Outcome.Result) != body:
				t.Errorf("%d bytes came back as %d others", len(body), len(read.Outcome.Result))
			}
			t.stored(task.ID, all.String())
		}
	}},
	{"Apply/call and checkpoint", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Call = json.RawMessage("1") })
		t.apply(task, shim.Change{Checkpoint: json.RawMessage("2")})
		got := t.get(task.ID, shim.WithRun)
		t.same("1 2", string(got.Call)+" "+string(got.Checkpoint))
		t.apply(task, shim.Change{Call: json.RawMessage("3")})
		got = t.get(task.ID, shim.WithRun)
		t.same("3 2", string(got.Call)+" "+string(got.Checkpoint))
	}},
	{"Apply/a checkpoint goes with the pieces before it", func(t *storeTest) {
		task := t.create(nil, batch("[0]"))
		is := func(at int64, checkpoint, want string, tail ...shim.Batch) {
			t.Helper()
			t.apply(task, shim.Change{Checkpoint: json.RawMessage(checkpoint), At: shim.Position(at), Tail: tail})
			t.same(want, string(t.get(task.ID, shim.WithRun).Checkpoint))
		}
		is(1, "1", "1")
		is(1, "2", "2", batch("[1]"))
		is(1, "3", "3", batch("[1]")) // as it is stored already
		is(1, "old", "3")             // it was held up on its way
		is(0, "old", "3", batch("[0]"))
		is(2, "4", "4")
		t.stored(task.ID, "[0]", "[1]")
	}},
	{"Apply/a change that comes after a later one says and asks nothing", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Call = json.RawMessage("1") })
		t.apply(task, shim.Change{Order: 2, Withdraw: []string{"q"}})
		late := shim.Change{Order: 1, StatusMessage: pointer("late"), Call: json.RawMessage("late"), Ask: ask("q")}
		got := t.apply(task, late)
		t.same([]any{shim.Working, task.StatusMessage, 0}, []any{got.Status, got.StatusMessage, len(got.Questions)})
		t.same("1", string(t.get(task.ID, shim.WithRun).Call))
		late.Order = 3
		t.same(shim.InputRequired, t.apply(task, late).Status)
	}},
	{"Apply/ttl is raised, and settled at the end", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.TTL, k.Retain = time.Hour, time.Minute })
		t.same(time.Hour, t.apply(task, shim.Change{TTL: time.Second}).TTL)
		t.same(2*time.Hour, t.apply(task, shim.Change{TTL: 2 * time.Hour}).TTL)
		got := t.end(task)
		t.same(got.UpdatedAt.Sub(got.CreatedAt)+time.Minute, got.TTL)
	}},
	{"Apply/retain", func(t *storeTest) {
		task := t.create(nil)
		t.same(time.Minute, t.apply(task, shim.Change{Retain: time.Minute}).Retain)
		got := t.apply(task, shim.Change{To: shim.Failed, Retain: time.Second})
		t.same(time.Second, got.Retain)
		t.same(got.UpdatedAt.Sub(got.CreatedAt)+time.Second, got.TTL)
	}},
	{"Apply/becomes visible", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Visible = false })
		t.same(false, task.Visible)
		t.same(true, t.apply(task, shim.Change{Visible: true}).Visible)
	}},
	{"Apply/with the tail in one step", func(t *storeTest) {
		task := t.create(nil, batch("[0]"))
		// The stream is not as long as its runner thinks.
		_, err := t.a.Apply(t.ctx, task.ID, &held, shim.Change{Op: "w", To: shim.Completed, At: 2})
		t.is(err, shim.ErrPosition)
		c := shim.Change{Op: "x", To: shim.Completed, Tail: []shim.Batch{batch("[2]")}, At: 2}
		_, err = t.a.Apply(t.ctx, task.ID, &held, c)
		t.is(err, shim.ErrPosition)
		t.same(task, t.get(task.ID, shim.Summary))
		c.Tail, c.At = []shim.Batch{batch("[0]"), batch("[1]")}, 0
		t.apply(task, c)
		t.stored(task.ID, "[0]", "[1]")
	}},
	{"Apply/counts changes", func(t *storeTest) {
		task := t.create(nil)
		got := t.apply(task, shim.Change{StatusMessage: pointer("x")})
		t.same(task.Version+1, got.Version)
		if got.UpdatedAt.Before(task.UpdatedAt) {
			t.Errorf("updated at %v, then at %v", task.UpdatedAt, got.UpdatedAt)
		}
	}},
}

func contains(list []shim.Status, s shim.Status) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}
