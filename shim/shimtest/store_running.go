package shimtest

import (
	"encoding/json"
	"time"

	"taskgate/shim"
)

// running is what all parts of Running tell of a replica.
func (t *storeTest) running(r shim.Replica) map[shim.ID]int64 {
	t.Helper()
	got := map[shim.ID]int64{}
	for part := range shim.Parts {
		list, err := t.b.Running(t.ctx, r, part)
		t.ok(err)
		for _, h := range list {
			if h.ID.Part() != part {
				t.Errorf("%s is in part %d", h.ID, part)
			}
			got[h.ID] = h.Version
		}
	}
	return got
}

var runningCases = []storeCase{
	{"Running/until the end", func(t *storeTest) {
		want := map[shim.ID]int64{}
		for range 40 {
			want[t.create(nil).ID] = 0
		}
		hidden := t.create(func(k *shim.Task) { k.Visible = false })
		want[hidden.ID] = 0
		ended, cancelled := t.create(nil), t.create(nil)
		t.end(ended)
		t.anyone(cancelled, shim.Change{Op: "x", To: shim.Cancelled})
		t.create(func(k *shim.Task) { k.Lease.Replica = "other" })
		t.same(want, t.running(runner))
		t.same(0, len(t.running("nobody")))
	}},
	{"Running/what others changed", func(t *storeTest) {
		task := t.create(nil)
		task = t.apply(task, shim.Change{Ask: []shim.Question{{Key: "q", Method: "m"}}})
		t.same(map[shim.ID]int64{task.ID: 0}, t.running(runner))
		answered := t.anyone(task, shim.Change{Answer: map[string]json.RawMessage{"q": json.RawMessage("1")}})
		t.same(map[shim.ID]int64{task.ID: answered.Version}, t.running(runner))
		t.apply(answered, shim.Change{Op: "y", StatusMessage: pointer("z")})
		t.same(map[shim.ID]int64{task.ID: answered.Version}, t.running(runner))
	}},
	{"Running/after an adoption", func(t *storeTest) {
		t.beat(runner, time.Hour)
		task := t.create(nil)
		t.anyone(task, shim.Change{TTL: 5 * time.Hour})
		t.beat(runner, 0)
		t.same(1, len(t.adopt("heir", 1, upstream)))
		t.same(0, len(t.running(runner)))
		t.same(map[shim.ID]int64{task.ID: 0}, t.running("heir"))
	}},
}
