package shimtest

import (
	"encoding/json"
	"time"

	"taskgate/shim"
)

// full is a task with something in each field.
func full(t *storeTest) shim.Task {
	task := newTask()
	task.StatusMessage = "queued \x00 ü"
	task.Lead = 1500 * time.Millisecond
	task.Trace = map[string]string{"traceparent": "00-a-b-01", "tracestate": "x=1"}
	task.Progress = shim.TaskProgress{Token: json.RawMessage(`"t"`), Params: json.RawMessage("{\n\"progress\": 1.0}")}
	task.Call = json.RawMessage(`{"call": 1.0}`)
	task.Checkpoint = json.RawMessage(`{"last":"\u003c"}`)
	task.Arguments = json.RawMessage(`{"n": 1.0}`)
	task.RerunOf = newTask().ID
	task.TTL, task.Retain, task.PollInterval = time.Hour, 2*time.Hour, 1500*time.Millisecond
	return task
}

// asStored is what a store makes of a new task, as a summary.
func asStored(task, got shim.Task) shim.Task {
	task.Version, task.CreatedAt, task.UpdatedAt = 1, got.CreatedAt, got.CreatedAt
	task.Call, task.Checkpoint, task.Arguments, task.Outcome, task.RerunOf = nil, nil, nil, nil, ""
	return task
}

var createCases = []storeCase{
	{"Create/keeps every field", func(t *storeTest) {
		task := full(t)
		before := time.Now()
		got, err := t.a.Create(t.ctx, task)
		t.ok(err)
		want := asStored(task, got)
		t.same(want, got)
		if d := got.CreatedAt.Sub(before); d < -time.Minute || d > time.Minute {
			t.Errorf("created at %v, now it is %v", got.CreatedAt, before)
		}
		t.same(want, t.get(task.ID, shim.Summary))
		t.same(want, t.get(task.ID, shim.WithOutcome))
		want.Call, want.Checkpoint, want.Arguments, want.RerunOf = task.Call, task.Checkpoint, task.Arguments, task.RerunOf
		t.same(want, t.get(task.ID, shim.WithRun))
	}},
	{"Create/again returns what is stored", func(t *storeTest) {
		task := newTask()
		first, err := t.a.Create(t.ctx, task, batch("[1]"))
		t.ok(err)
		changed := t.apply(first, shim.Change{StatusMessage: pointer("later")})
		again, err := t.b.Create(t.ctx, task, batch("[1]"))
		t.ok(err)
		t.same(changed, again)
		t.stored(task.ID, "[1]")
	}},
	{"Create/with another op is refused", func(t *storeTest) {
		task := t.create(nil)
		task.Op = "another"
		_, err := t.b.Create(t.ctx, task)
		t.is(err, shim.ErrFinal)
	}},
	{"Create/needs an id and an op", func(t *storeTest) {
		for _, change := range []func(*shim.Task){
			func(k *shim.Task) { k.ID = "x" }, func(k *shim.Task) { k.ID = "" }, func(k *shim.Task) { k.Op = "" },
		} {
			task := newTask()
			change(&task)
			if _, err := t.a.Create(t.ctx, task); err == nil {
				t.Errorf("%q %q: created", task.ID, task.Op)
			}
		}
	}},
	{"Create/with what came before it", func(t *storeTest) {
		task := t.create(nil, batch("[1]"), batch("[2]"))
		t.same(shim.Position(2), task.Position)
		t.stored(task.ID, "[1]", "[2]")
	}},
	{"Create/waiting for input", func(t *storeTest) {
		questions := []shim.Question{
			{Key: "q1", Method: "elicitation/create", Params: json.RawMessage(`{"a":1}`)},
			{Key: "q2", Method: "roots/list"},
		}
		task := t.create(func(k *shim.Task) { k.Status, k.Questions = shim.InputRequired, questions })
		t.same(questions, task.Questions)
		t.same(questions, t.get(task.ID, shim.Summary).Questions)
		answers := map[string]json.RawMessage{"q1": json.RawMessage("1"), "q2": json.RawMessage("2")}
		t.same(shim.Working, t.apply(task, shim.Change{Answer: answers}).Status)
	}},
	{"Create/with questions that are settled", func(t *storeTest) {
		questions := []shim.Question{
			{Key: "1", Answer: json.RawMessage("1")},
			{Key: "2", Answer: json.RawMessage("2"), Taken: true},
			{Key: "3", Withdraw: true},
		}
		task := t.create(func(k *shim.Task) { k.Questions = questions })
		t.same(questions, t.get(task.ID, shim.Summary).Questions)
		got := t.anyone(task, shim.Change{Op: "x", Take: []string{"1", "2", "3"}, Ask: ask("3", "4"), Answer: answer("3", "4")})
		t.same([]bool{true, false, false, false}, taken(got)) // 2 was taken before, by another op
		t.same([]bool{true, true, false, false}, taken(t.get(task.ID, shim.Summary)))
	}},
	{"Create/that has ended", func(t *storeTest) {
		outcome := &shim.Outcome{Result: json.RawMessage(`{}`), IsError: true}
		task := t.create(func(k *shim.Task) { k.Status, k.Outcome, k.Retain = shim.Completed, outcome, time.Minute })
		t.same(time.Minute, task.TTL)
		t.same(outcome, t.get(task.ID, shim.WithOutcome).Outcome)
		_, err := t.a.Apply(t.ctx, task.ID, nil, shim.Change{Op: "x", To: shim.Cancelled})
		t.is(err, shim.ErrFinal)
	}},
	{"Create/without a runner", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Lease = shim.Lease{} })
		t.same(shim.Lease{}, t.get(task.ID, shim.Summary).Lease)
		got, err := t.b.Apply(t.ctx, task.ID, nil, shim.Change{Op: "x", To: shim.Cancelled})
		t.ok(err)
		t.same(shim.Cancelled, got.Status)
	}},
	{"Create/times are whole milliseconds, never shorter", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.TTL, k.Retain = time.Second+1, time.Minute-1 })
		t.same(time.Second+time.Millisecond, task.TTL)
		t.same(time.Minute, task.Retain)
	}},
	{"Get/nothing", func(t *storeTest) {
		ids := []shim.ID{shim.NewID(), "", "a", "{}", "ABCDEFAB-0000-4000-8000-000000000000", "urn:uuid:" + shim.NewID()}
		for _, id := range ids {
			for _, part := range []shim.Part{shim.Summary, shim.WithOutcome, shim.WithRun} {
				_, err := t.a.Get(t.ctx, id, part)
				t.is(err, shim.ErrNotFound)
			}
			_, err := t.a.Apply(t.ctx, id, nil, shim.Change{Op: "x", To: shim.Cancelled})
			t.is(err, shim.ErrNotFound)
			_, err = t.a.Apply(t.ctx, id, &held, shim.Change{Checkpoint: json.RawMessage("1")})
			t.is(err, shim.ErrNotFound)
			_, err = t.a.Batches(t.ctx, id, 0)
			t.is(err, shim.ErrNotFound)
		}
	}},
}
