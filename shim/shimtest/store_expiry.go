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

// within does what has to be done before a ttl is over, and again with a longer one if
// the machine was too slow for that.
func (t *storeTest) within(ttl time.Duration, do func(ttl time.Duration) error) {
	t.Helper()
	for {
		began := time.Now()
		err := do(ttl)
		if err == nil {
			return
		}
		if time.Since(began) < ttl-precision {
			t.Fatalf("not even for %v: %v", ttl, err)
		}
		ttl *= 4
	}
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
		var hidden shim.Task
		t.within(4*ttl, func(ttl time.Duration) error {
			hidden = t.create(func(k *shim.Task) { k.Visible, k.TTL = false, ttl })
			return t.a.Append(t.ctx, hidden.ID, hidden.Lease, 0, nil, batch("[0]"))
		})
		t.gone(hidden.ID)
		t.stored(running.ID, "[0]")
		t.same(shown, t.get(shown.ID, shim.Summary))
		t.same([]shim.ID{running.ID, shown.ID}, ids(t.pages(listKey, 10)[0]))
		t.append(running, 1, batch("[1]"))
		t.ends(running, shim.Change{To: shim.Cancelled, Retain: ttl})
		t.gone(running.ID)
	}},
	{"Expiry/of a hidden call moves with its ttl", func(t *storeTest) {
		var task, other shim.Task
		t.within(200*time.Millisecond, func(ttl time.Duration) error {
			task = t.create(func(k *shim.Task) { k.Visible, k.TTL = false, ttl })
			_, err := t.a.Apply(t.ctx, task.ID, &held, shim.Change{Op: "x", TTL: time.Hour})
			other = t.create(func(k *shim.Task) { k.Visible, k.TTL = false, 2*ttl })
			return err
		})
		t.gone(other.ID)
		t.get(task.ID, shim.Summary)
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
