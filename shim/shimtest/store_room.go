package shimtest

import (
	"encoding/json"
	"errors"
	"strings"
	"time"

	"taskgate/shim"
)

// What tasks take counts towards the room that a new task of the same owner needs.
var roomCases = []storeCase{
	{"RoomCountsWhatRuns", func(t *storeTest) {
		call := json.RawMessage(`"` + strings.Repeat("x", 100_000) + `"`)
		with := func(task *shim.Task) { task.Call = call }
		first := t.createIn(350_000, with)
		t.createIn(350_000, with)
		third := t.createIn(350_000, with)
		t.noRoom(350_000, with)
		t.createIn(0, with) // without a bound
		t.createIn(150_000, func(task *shim.Task) { task.Owner, task.ListKey = "bob", "p:bob"; task.Call = call })
		t.createIn(1, func(task *shim.Task) { task.Owner, task.ListKey = "", "s:somebody"; task.Call = call })
		// A repeat needs no room, and takes none.
		for range 5 {
			again := third
			again.Call, again.Room = call, 350_000
			_, err := t.b.Create(t.ctx, again)
			t.ok(err)
		}
		t.noRoom(430_000, with)
		t.apply(first, shim.Change{Op: "end", To: shim.Completed}) // its call is not kept
		t.createIn(430_000, with)
	}},
	{"RoomCountsWhatHasEnded", func(t *storeTest) {
		big := &shim.Outcome{Result: json.RawMessage(`"` + strings.Repeat("x", 200_000) + `"`)}
		end := shim.Change{Op: "end", To: shim.Completed, Outcome: big}
		kept := t.createIn(300_000, nil)
		brief := t.createIn(300_000, func(task *shim.Task) { task.Retain = time.Second })
		t.apply(kept, end)
		t.createIn(300_000, nil)
		t.apply(brief, end) // whatever it takes
		t.noRoom(300_000, nil)
		t.eventually("what has expired counts no more", func() bool {
			task := newTask(t)
			task.Room = 300_000
			_, err := t.a.Create(t.ctx, task)
			busy := (*shim.BusyError)(nil)
			if err != nil && !errors.As(err, &busy) {
				t.Fatal(err)
			}
			return err == nil
		})
	}},
	{"RoomCountsPieces", func(t *storeTest) {
		task := t.createIn(1_000_000, nil)
		piece := json.RawMessage(`["` + strings.Repeat("x", 50_000) + `"]`)
		for i := range int64(10) {
			at := shim.Position{Batches: i}
			for range 2 { // a repeat takes nothing
				t.ok(t.a.Append(t.ctx, task.ID, held, at, nil, shim.Batch{Content: piece}))
			}
		}
		t.createIn(600_000, nil)
		t.noRoom(400_000, nil)
		t.apply(task, shim.Change{
			Op: "end", To: shim.Completed, At: shim.Position{Batches: 10},
			Tail: []shim.Batch{{Segments: []json.RawMessage{piece, piece}}},
		})
		t.noRoom(600_000, nil)
		t.createIn(650_000, nil)
	}},
	{"RoomCountsNoTailTwice", func(t *storeTest) {
		task := t.createIn(100_000, nil)
		tail := []shim.Batch{{Content: json.RawMessage(`["` + strings.Repeat("x", 50_000) + `"]`)}}
		first := t.apply(task, shim.Change{Op: "one", Tail: tail})
		for _, op := range []string{"two", "three"} { // it is there: that changes nothing, not even the version
			again := t.apply(task, shim.Change{Op: op, Tail: tail})
			t.same(first.Version, again.Version)
		}
		message := "working"
		t.apply(task, shim.Change{Op: "four", StatusMessage: &message, Tail: tail})
		t.apply(task, shim.Change{Op: "five", To: shim.Completed, Tail: tail})
		t.createIn(60_000, nil)
		t.noRoom(55_000, nil)
	}},
	{"RoomCountsQuestions", func(t *storeTest) {
		task := t.createIn(1_000_000, nil)
		ask := shim.Question{Key: "q", Method: "elicitation/create", Params: json.RawMessage(`"` + strings.Repeat("x", 200_000) + `"`)}
		_, err := t.a.Apply(t.ctx, task.ID, &task.Lease, shim.Change{Op: "ask", Ask: []shim.Question{ask}})
		t.ok(err)
		t.noRoom(200_000, nil)
		_, err = t.a.Apply(t.ctx, task.ID, &task.Lease, shim.Change{Op: "withdraw", Withdraw: []string{"q"}})
		t.ok(err)
		t.createIn(200_000, nil)
	}},
	{"RoomAfterACancellation", func(t *storeTest) {
		task := t.createIn(150_000, func(task *shim.Task) { task.Checkpoint = json.RawMessage(`"` + strings.Repeat("x", 100_000) + `"`) })
		t.noRoom(100_000, nil)
		message := "cancelled"
		_, err := t.b.Apply(t.ctx, task.ID, nil, shim.Change{Op: "cancel", To: shim.Cancelled, StatusMessage: &message})
		t.ok(err)
		t.createIn(100_000, nil)
	}},
}

// createIn makes a task where there is this much room for its owner.
func (t *storeTest) createIn(room int64, change func(*shim.Task)) shim.Task {
	t.Helper()
	return t.create(func(task *shim.Task) {
		if change != nil {
			change(task)
		}
		task.Room = room
	})
}

// noRoom fails the test unless there is too little room for another task.
func (t *storeTest) noRoom(room int64, change func(*shim.Task)) {
	t.Helper()
	task := newTask(t)
	if change != nil {
		change(&task)
	}
	task.Room = room
	_, err := t.b.Create(t.ctx, task)
	var busy *shim.BusyError
	if !errors.As(err, &busy) || busy.Key != "max_stored_bytes_per_owner" {
		t.Fatalf("in %d bytes: %v", room, err)
	}
	if _, err := t.a.Get(t.ctx, task.ID, shim.Summary); !errors.Is(err, shim.ErrNotFound) {
		t.Fatalf("a task that was refused: %v", err)
	}
}
