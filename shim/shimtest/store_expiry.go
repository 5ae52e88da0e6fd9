package shimtest

import (
	"errors"
	"time"

	"taskgate/shim"
)

// gone waits until a task is, with everything that belongs to it: a store may forget that a
// moment later.
func (t *storeTest) gone(id shim.ID) {
	t.Helper()
	t.eventually("task is gone", func() bool {
		_, task := t.b.Get(t.ctx, id, shim.WithRun)
		_, batches := t.b.Batches(t.ctx, id, 0)
		return errors.Is(task, shim.ErrNotFound) && errors.Is(batches, shim.ErrNotFound)
	})
}

// ends has a task end in any way, without looking at what may be gone then.
func (t *storeTest) ends(task shim.Task, c shim.Change) shim.Task {
	t.Helper()
	c.Op = "ends"
	got, err := t.a.Apply(t.ctx, task.ID, &task.Lease, c)
	t.ok(err)
	t.same(c.To, got.Status)
	return got
}

var expiryCases = []storeCase{
	{"Expiry/a task that has ended goes", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Retain = 300 * time.Millisecond }, batch("[0]"))
		ended := t.ends(task, shim.Change{To: shim.Completed})
		t.gone(task.ID)
		if d := time.Until(ended.ExpiresAt()); d > 0 {
			t.Errorf("gone %v too early", d)
		}
		t.same(0, len(t.pages(listKey, 10)[0]))
		// Another task may not continue what it streamed.
		again, err := t.a.Create(t.ctx, task)
		t.ok(err)
		t.same(shim.Position(0), again.Position)
		t.stored(task.ID)
	}},
	{"Expiry/a running task stays, whatever its ttl", func(t *storeTest) {
		const ttl = 50 * time.Millisecond
		running := t.create(func(k *shim.Task) { k.TTL = ttl }, batch("[0]"))
		shown := t.create(func(k *shim.Task) { k.Visible, k.TTL = false, time.Minute }, batch("[0]"))
		shown = t.apply(shown, shim.Change{Visible: true})
		hidden := t.create(func(k *shim.Task) { k.Visible, k.TTL = false, ttl })
		t.append(hidden, 0, batch("[0]"))
		t.stored(running.ID, "[0]")
		t.same(shown, t.get(shown.ID, shim.Summary))
		t.same([]shim.ID{running.ID, shown.ID}, ids(t.pages(listKey, 10)[0]))
		t.append(running, 1, batch("[1]"))
		t.ends(running, shim.Change{To: shim.Cancelled, Retain: ttl})
		t.gone(running.ID)
		t.stored(hidden.ID, "[0]")
	}},
	{"Expiry/of a hidden call that has ended", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Visible, k.Retain = false, 100*time.Millisecond }, batch("[0]"))
		t.ends(task, shim.Change{To: shim.Completed})
		t.gone(task.ID)
	}},
	{"Expiry/at once", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Retain = 0 })
		t.ends(task, shim.Change{To: shim.Failed})
		t.gone(task.ID)
	}},
}
