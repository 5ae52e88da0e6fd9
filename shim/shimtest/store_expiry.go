package shimtest

import (
	"errors"
	"time"

	"taskgate/shim"
)

// gone waits until a task is, with everything that belongs to it.
func (t *storeTest) gone(id shim.ID) {
	t.Helper()
	t.eventually("task is gone", func() bool {
		_, err := t.b.Get(t.ctx, id, shim.WithRun)
		return errors.Is(err, shim.ErrNotFound)
	})
	_, err := t.b.Batches(t.ctx, id, 0)
	t.is(err, shim.ErrNotFound)
	_, err = t.b.Segments(t.ctx, id, 0)
	t.is(err, shim.ErrNotFound)
}

var expiryCases = []storeCase{
	{"Expiry/a task that has ended goes", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Retain = 300 * time.Millisecond }, batch("[0]", "a"))
		ended := t.end(task)
		t.gone(task.ID)
		if d := time.Until(ended.ExpiresAt()); d > 0 {
			t.Errorf("gone %v too early", d)
		}
		t.same(0, len(t.pages(listKey, 10)[0]))
		// Another task may not continue what it streamed.
		again, err := t.a.Create(t.ctx, task)
		t.ok(err)
		t.same(shim.Position{}, again.Position)
		t.stored(task.ID, nil, nil)
	}},
	{"Expiry/a running task stays, whatever its ttl", func(t *storeTest) {
		const ttl = 50 * time.Millisecond
		running := t.create(func(k *shim.Task) { k.TTL = ttl }, batch("[0]"))
		shown := t.create(func(k *shim.Task) { k.Visible, k.TTL = false, 10*time.Second }, batch("[0]"))
		shown = t.apply(shown, shim.Change{Visible: true})
		hidden := t.create(func(k *shim.Task) { k.Visible, k.TTL = false, 4*ttl })
		t.append(hidden, shim.Position{}, batch("[0]"))
		t.gone(hidden.ID)
		t.stored(running.ID, []string{"[0]"}, nil)
		t.same(shown, t.get(shown.ID, shim.Summary))
		t.same([]shim.ID{running.ID, shown.ID}, ids(t.pages(listKey, 10)[0]))
		t.append(running, shim.Position{Batches: 1}, batch("[1]"))
		t.apply(running, shim.Change{To: shim.Cancelled, Retain: ttl})
		t.gone(running.ID)
	}},
	{"Expiry/of a hidden call moves with its ttl", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Visible, k.TTL = false, 200*time.Millisecond })
		t.apply(task, shim.Change{TTL: time.Hour})
		other := t.create(func(k *shim.Task) { k.Visible, k.TTL = false, 400*time.Millisecond })
		t.gone(other.ID)
		t.get(task.ID, shim.Summary)
	}},
	{"Expiry/of a hidden call that has ended", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Visible, k.Retain = false, 100*time.Millisecond }, batch("[0]"))
		t.end(task)
		t.gone(task.ID)
	}},
	{"Expiry/at once", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Retain = 0 })
		got, err := t.a.Apply(t.ctx, task.ID, &held, shim.Change{Op: "x", To: shim.Failed})
		t.ok(err)
		t.same(shim.Failed, got.Status)
		t.gone(task.ID)
	}},
}
