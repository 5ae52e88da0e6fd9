package shimtest

import (
	"encoding/json"
	"fmt"
	"sync"

	"taskgate/shim"
)

func ask(keys ...string) []shim.Question {
	var out []shim.Question
	for _, k := range keys {
		out = append(out, shim.Question{Key: k, Method: "elicitation/create", Params: json.RawMessage(`{"for":"` + k + `"}`)})
	}
	return out
}

func answer(keys ...string) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, k := range keys {
		out[k] = json.RawMessage(`{"to":"` + k + `"}`)
	}
	return out
}

// anyone makes a change without a lease through the other handle, and wants it done.
func (t *storeTest) anyone(task shim.Task, c shim.Change) shim.Task {
	t.Helper()
	got, err := t.b.Apply(t.ctx, task.ID, nil, c)
	t.ok(err)
	return got
}

// taken lists which questions are.
func taken(task shim.Task) (out []bool) {
	for _, q := range task.Questions {
		out = append(out, q.Taken)
	}
	return out
}

var questionCases = []storeCase{
	{"Ask/waits for input", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1", "2")})
		t.same(shim.InputRequired, task.Status)
		t.same(ask("1", "2"), task.Questions)
		task = t.apply(task, shim.Change{Ask: ask("3")})
		t.same(shim.InputRequired, task.Status)
		t.same(ask("1", "2", "3"), task.Questions)
	}},
	{"Ask/a key once seen is never asked again", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1")})
		other := []shim.Question{{Key: "1", Method: "roots/list"}}
		t.same(ask("1"), t.apply(task, shim.Change{Ask: other}).Questions)
		t.same(shim.Working, t.anyone(task, shim.Change{Answer: answer("1")}).Status)
		got := t.apply(task, shim.Change{Ask: other})
		t.same(shim.Working, got.Status)
		t.same(`{"to":"1"}`, string(got.Questions[0].Answer))
	}},
	{"Answer/the last one goes on", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1", "2")})
		t.same(shim.InputRequired, t.anyone(task, shim.Change{Answer: answer("2")}).Status)
		got := t.anyone(task, shim.Change{Answer: answer("1")})
		t.same(shim.Working, got.Status)
		// What was asked is not kept beside what was answered.
		t.same([]shim.Question{{Key: "1", Answer: answer("1")["1"]}, {Key: "2", Answer: answer("2")["2"]}}, got.Questions)
		t.same(shim.InputRequired, t.apply(task, shim.Change{Ask: ask("3")}).Status)
	}},
	{"Answer/other keys are ignored", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1", "2")})
		t.same(task, t.anyone(task, shim.Change{Answer: answer("9", "")}))
		task = t.anyone(task, shim.Change{Answer: map[string]json.RawMessage{"1": json.RawMessage("first"), "9": nil}})
		got := t.anyone(task, shim.Change{Answer: map[string]json.RawMessage{"1": json.RawMessage("second")}})
		t.same(task, got)
		t.same("first", string(got.Questions[0].Answer))
	}},
	{"Withdraw/the last one goes on", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1", "2")})
		task = t.apply(task, shim.Change{Withdraw: []string{"1", "9"}})
		t.same(shim.InputRequired, task.Status)
		t.same(shim.Question{Key: "1", Withdraw: true}, task.Questions[0])
		t.same(task, t.anyone(task, shim.Change{Answer: answer("1")})) // nobody waits for it
		task = t.anyone(task, shim.Change{Answer: answer("2")})
		t.same(shim.Working, task.Status)
		t.same(task, t.apply(task, shim.Change{Withdraw: []string{"2"}})) // it is answered
	}},
	{"Answer/all at once from everywhere", func(t *storeTest) {
		var keys []string
		for i := range 12 {
			keys = append(keys, fmt.Sprint(i))
		}
		task := t.apply(t.create(nil), shim.Change{Ask: ask(keys...)})
		var all sync.WaitGroup
		for i, k := range keys {
			all.Go(func() {
				s := []shim.Store{t.a, t.b}[i%2]
				if _, err := s.Apply(t.ctx, task.ID, nil, shim.Change{Answer: answer(k)}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		t.same(shim.Working, t.get(task.ID, shim.Summary).Status)
	}},
	{"Take/in the step that withdraws", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1", "2")})
		t.anyone(task, shim.Change{Answer: answer("2")})
		got, err := t.a.Apply(t.ctx, task.ID, &held, shim.Change{Op: "end", Withdraw: []string{"1", "2"}, Take: []string{"1", "2"}})
		t.ok(err)
		t.same([]bool{false, true}, taken(got))
		t.same([]bool{true, false}, []bool{got.Questions[0].Withdraw, got.Questions[1].Withdraw})
		t.same(shim.Working, got.Status)
	}},
	{"Take/at most once", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1", "2", "3")})
		t.anyone(task, shim.Change{Answer: answer("1", "2")})
		first := shim.Change{Op: "t1", Take: []string{"1", "3"}}
		got, err := t.a.Apply(t.ctx, task.ID, &held, first)
		t.ok(err)
		t.same([]bool{true, false, false}, taken(got))
		got, err = t.a.Apply(t.ctx, task.ID, &held, shim.Change{Op: "t2", Take: []string{"1", "2"}})
		t.ok(err)
		t.same([]bool{false, true, false}, taken(got))
		got, err = t.b.Apply(t.ctx, task.ID, &held, first) // whose reply was lost
		t.ok(err)
		t.same([]bool{true, false, false}, taken(got))
		t.same([]bool{true, true, false}, taken(t.get(task.ID, shim.Summary)))
	}},
	{"Take/at most once from everywhere", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1")})
		t.anyone(task, shim.Change{Answer: answer("1")})
		var all sync.WaitGroup
		var mu sync.Mutex
		winners := 0
		for i := range 12 {
			all.Go(func() {
				s := []shim.Store{t.a, t.b}[i%2]
				got, err := s.Apply(t.ctx, task.ID, &held, shim.Change{Op: fmt.Sprint(i), Take: []string{"1"}})
				if err != nil {
					t.Error(err)
				} else if got.Questions[0].Taken {
					mu.Lock()
					winners++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		t.same(1, winners)
	}},
	{"Take/and drop what another op has taken", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1", "2", "3", "4")})
		t.anyone(task, shim.Change{Answer: answer("1", "2", "3")})
		t.apply(task, shim.Change{Op: "t1", Order: 1, Take: []string{"1"}})
		t.anyone(task, shim.Change{Op: "other", StatusMessage: pointer("of another caller")})
		t.same(string(answer("1")["1"]), string(t.get(task.ID, shim.Summary).Questions[0].Answer))
		for range 2 { // the reply to the first may have been lost
			got, err := t.a.Apply(t.ctx, task.ID, &held, shim.Change{Op: "t2", Order: 3, Take: []string{"2"}})
			t.ok(err)
			t.same([]bool{false, true, false, false}, taken(got))
			t.same(string(answer("2")["2"]), string(got.Questions[1].Answer))
		}
		t.apply(task, shim.Change{Order: 2, Withdraw: []string{"9"}}) // it is late
		none := json.RawMessage(shim.Forgotten)
		want := []shim.Question{
			{Key: "1", Answer: none, Taken: true}, {Key: "2", Answer: answer("2")["2"], Taken: true},
			{Key: "3", Answer: answer("3")["3"]}, ask("4")[0],
		}
		t.same(want, t.get(task.ID, shim.Summary).Questions)
		// A forgotten question has been answered, and its key is used.
		got := t.apply(task, shim.Change{Ask: ask("1"), Answer: answer("1"), Withdraw: []string{"1"}})
		t.same(want, got.Questions)
		got, err := t.a.Apply(t.ctx, task.ID, &held, shim.Change{Op: "t3", Take: []string{"1"}})
		t.ok(err)
		t.same([]bool{false, false, false, false}, taken(got))
	}},
	{"Ask/nothing of it outlasts the task", func(t *storeTest) {
		for _, end := range []shim.Status{shim.Completed, shim.Failed, shim.Cancelled} {
			task := t.create(func(k *shim.Task) { k.Call, k.Checkpoint = json.RawMessage(`"call"`), json.RawMessage(`"at"`) })
			t.apply(task, shim.Change{Ask: ask("open", "answered", "taken", "withdrawn")})
			t.anyone(task, shim.Change{Answer: answer("answered", "taken")})
			t.apply(task, shim.Change{Take: []string{"taken"}, Withdraw: []string{"withdrawn"}})
			t.apply(task, shim.Change{To: end})
			none := json.RawMessage(shim.Forgotten)
			got := t.get(task.ID, shim.WithRun)
			t.same([]shim.Question{
				{Key: "open", Withdraw: true}, {Key: "answered", Answer: none, Taken: true},
				{Key: "taken", Answer: none, Taken: true}, {Key: "withdrawn", Withdraw: true},
			}, got.Questions)
			t.same([2]json.RawMessage{}, [2]json.RawMessage{got.Call, got.Checkpoint})
		}
	}},
	{"Ask/in the step that answers", func(t *storeTest) {
		task := t.apply(t.create(nil), shim.Change{Ask: ask("1")})
		t.same(shim.InputRequired, t.apply(task, shim.Change{Ask: ask("2"), Answer: answer("1")}).Status)
		t.same(shim.Working, t.apply(task, shim.Change{Ask: ask("3"), Withdraw: []string{"2", "3"}}).Status)
	}},
}
