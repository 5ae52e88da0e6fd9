package shimtest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"taskgate/shim"
)

// told are the moments of a task as "kind detail", and it checks that their times rise.
func (t *storeTest) told(id shim.ID) (all []string) {
	t.Helper()
	task := t.get(id, shim.WithTimeline)
	for i, m := range task.Timeline {
		all = append(all, strings.TrimSpace(string(m.Kind)+" "+m.Detail))
		if i > 0 && m.At.Before(task.Timeline[i-1].At) {
			t.Errorf("%v at %v comes after %v", m.Kind, m.At, task.Timeline[i-1])
		}
	}
	return all
}

// moment is one without an age.
func moment(kind shim.Kind, detail string) []shim.Moment {
	return []shim.Moment{{Kind: kind, Detail: detail}}
}

var timelineCases = []storeCase{
	{"Timeline/of the whole life of a task", func(t *storeTest) {
		t.beat(runner, time.Hour)
		task := t.create(func(k *shim.Task) {
			k.Timeline = []shim.Moment{{Kind: shim.KindSent, Ago: time.Minute, Detail: "runner"}, {Kind: shim.KindMade}}
		})
		t.same(task, t.get(task.ID, shim.Summary))
		sent := t.get(task.ID, shim.WithTimeline).Timeline[0].At
		t.same(task.CreatedAt.Add(-time.Minute), sent)

		t.apply(task, shim.Change{Ask: []shim.Question{{Key: "q", Method: "m"}}, Moments: moment(shim.KindAsked, "m")})
		t.anyone(task, shim.Change{Op: "answer", Answer: map[string]json.RawMessage{"q": json.RawMessage(`{"result":1}`)}, Moments: moment(shim.KindAnswered, "")})
		t.beat(runner, 0)
		adopted := t.adopt("heir", 1, upstream)[0]
		t.apply(adopted, shim.Change{To: shim.Failed, Outcome: &shim.Outcome{Error: json.RawMessage(`{}`)}, Moments: moment(shim.KindEnded, "unknown")})
		t.same([]string{"sent runner", "made", "asked m", "answered", "adopted heir from runner", "ended unknown"}, t.told(task.ID))
		all := t.get(task.ID, shim.WithAll)
		t.same(6, len(all.Timeline))
		t.same("{}", string(all.Outcome.Error))
	}},
	{"Timeline/a repeat is told once", func(t *storeTest) {
		task := t.create(nil)
		for range 2 {
			_, err := t.a.Apply(t.ctx, task.ID, &task.Lease, shim.Change{TTL: 2 * time.Hour, Moments: moment(shim.KindSent, "a")})
			t.ok(err)
		}
		t.apply(task, shim.Change{StatusMessage: pointer("x"), Moments: moment(shim.KindSent, "b")})
		t.same([]string{"sent a", "sent b"}, t.told(task.ID))
	}},
	{"Timeline/alone it is no change", func(t *storeTest) {
		task := t.create(nil)
		got, err := t.a.Apply(t.ctx, task.ID, &task.Lease, shim.Change{Moments: moment(shim.KindResumed, "")})
		t.ok(err)
		t.same(task, got)
		t.same([]string{"resumed"}, t.told(task.ID))
	}},
	{"Timeline/bounded, and the first one stays", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Timeline = moment(shim.KindMade, "") })
		for i := range shim.MostMoments + 10 {
			_, err := t.a.Apply(t.ctx, task.ID, &task.Lease, shim.Change{Moments: moment(shim.KindAsked, fmt.Sprint(i))})
			t.ok(err)
		}
		got := t.told(task.ID)
		t.same(shim.MostMoments, len(got))
		t.same([]string{"made", "asked 11"}, got[:2])
		t.same(fmt.Sprint("asked ", shim.MostMoments+9), got[len(got)-1])
	}},
	{"Timeline/a detail is one line of text", func(t *storeTest) {
		task := t.create(func(k *shim.Task) { k.Timeline = moment(shim.KindMade, "a\nmade 1 b\xff "+strings.Repeat("é", 1000)) })
		got := t.told(task.ID)
		if len(got) != 1 || len(got[0]) > 300 || !strings.HasPrefix(got[0], "made a made 1 b") {
			t.Errorf("%q", got)
		}
	}},
}
