package shimtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"taskgate/shim"
)

var streamCases = []storeCase{
	{"Tail/in order", func(t *storeTest) {
		task := t.create(nil)
		t.append(task, 0, batch("[0]"), batch("[1]"))
		t.append(task, 2, batch("[2]"))
		t.stored(task.ID, "[0]", "[1]", "[2]")
		t.same(task.Version, t.get(task.ID, shim.Summary).Version)
	}},
	{"Tail/what is there is skipped", func(t *storeTest) {
		task := t.create(nil)
		for range 2 {
			t.append(task, 0, batch("[0]"), batch("[1]"))
		}
		t.append(task, 1, batch("[1]"), batch("[2]"))
		t.stored(task.ID, "[0]", "[1]", "[2]")
	}},
	{"Tail/no gaps", func(t *storeTest) {
		task := t.create(nil, batch("[0]"))
		for _, at := range []shim.Position{2, 9} {
			_, err := t.a.Apply(t.ctx, task.ID, &held, shim.Change{At: at, Tail: []shim.Batch{batch("[1]")}, Checkpoint: json.RawMessage("1")})
			t.is(err, shim.ErrPosition)
		}
		t.stored(task.ID, "[0]")
		t.same("", string(t.get(task.ID, shim.WithRun).Checkpoint))
	}},
	{"Tail/nothing", func(t *storeTest) {
		task := t.create(nil)
		t.append(task, 0)
		t.same(task, t.get(task.ID, shim.Summary))
	}},
	{"Tail/many", func(t *storeTest) {
		task := t.create(nil)
		var batches []shim.Batch
		var contents []string
		for i := range 3000 {
			contents = append(contents, fmt.Sprintf("[%d]", i))
			batches = append(batches, batch(contents[i]))
		}
		t.append(task, 0, batches...)
		t.stored(task.ID, contents...)
	}},
	{"Batches/from somewhere", func(t *storeTest) {
		task := t.create(nil, batch("[0]"), batch("[1]"), batch("[2]"))
		for from, want := range map[int64][]string{-5: {"[0]", "[1]", "[2]"}, 1: {"[1]", "[2]"}, 2: {"[2]"}, 3: nil, 99: nil} {
			b, err := t.b.Batches(t.ctx, task.ID, from)
			t.ok(err)
			t.same(want, texts(b))
		}
	}},
}

var raceCases = []storeCase{
	{"Race/a task ends once", func(t *storeTest) {
		for range Rounds(30) {
			task := t.create(func(k *shim.Task) { k.Visible, k.TTL = false, time.Minute })
			ends := []shim.Change{
				{Op: "1", To: shim.Completed, Outcome: &shim.Outcome{Result: json.RawMessage(`{}`)}, Tail: []shim.Batch{batch("[9]")}},
				{Op: "2", To: shim.Cancelled}, {Op: "3", To: shim.Failed}, {Op: "4", To: shim.Cancelled},
			}
			t.same(1, t.endAtOnce(task, ends))
			ended := t.get(task.ID, shim.WithOutcome)
			for _, c := range ends {
				got, err := t.b.Apply(t.ctx, task.ID, nil, c)
				if c.To == ended.Status && err == nil {
					continue // this one did it
				}
				t.is(err, shim.ErrFinal)
				t.same(ended.Status, got.Status)
				t.same(ended, t.get(task.ID, shim.WithOutcome))
			}
			t.same(ended.Status == shim.Completed, ended.Outcome != nil)
			t.same(ended.Status == shim.Completed, ended.Position == 1)
		}
	}},
	{"Race/an end against expiry", func(t *storeTest) {
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				task := newTask()
				task.Visible, task.TTL = false, time.Duration(i)*time.Millisecond
				task, err := t.a.Create(t.ctx, task)
				if err == nil {
					task, err = t.b.Apply(t.ctx, task.ID, &held, shim.Change{Op: "x", To: shim.Completed})
				}
				switch got, gone := t.b.Get(t.ctx, task.ID, shim.Summary); {
				case err == nil && (gone != nil || got.Status != shim.Completed):
					t.Errorf("ended, then %v %v", got.Status, gone)
				case err != nil && gone == nil:
					t.Errorf("could not end (%v) but is still there: %v", err, got.Status)
				}
			})
		}
		all.Wait()
	}},
}

// endAtOnce makes all changes at the same time from both handles, and counts those
// that were done.
func (t *storeTest) endAtOnce(task shim.Task, ends []shim.Change) int {
	var all sync.WaitGroup
	done := make([]bool, len(ends))
	for i, c := range ends {
		all.Go(func() {
			_, err := []shim.Store{t.a, t.b}[i%2].Apply(t.ctx, task.ID, nil, c)
			if done[i] = err == nil; err != nil && !errors.Is(err, shim.ErrFinal) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	n := 0
	for _, d := range done {
		if d {
			n++
		}
	}
	return n
}
