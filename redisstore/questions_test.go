package redisstore

import (
	"encoding/json"
	"testing"

	"taskgate/shim"
)

// TestClaimedQuestions: a version before this one noted with a question who had claimed it. Such a
// question is read, answered, and written so that that version can read it.
func TestClaimedQuestions(t *testing.T) {
	t.Parallel()
	s := openTest(t, "embedded", testOptions())
	task := create(t, s, newTask())
	field := func() string { return s.client.HGet(t.Context(), s.keys.task(task.ID), fieldQuestions).Val() }
	claimed := string(pack(nil, "q", "roots/list", "{}", "stream", stateOpen, "", ""))
	must(t, s.client.HSet(t.Context(), s.keys.task(task.ID), fieldQuestions, claimed).Err())
	same(t, []shim.Question{{Key: "q", Method: "roots/list", Params: json.RawMessage("{}")}}, read(t, s, task.ID, shim.Summary).Questions)
	_, err := s.Apply(t.Context(), task.ID, nil, shim.Change{Answer: map[string]json.RawMessage{"q": json.RawMessage("1")}})
	must(t, err)
	same(t, string(pack(nil, "q", "", "", "stream", stateAnswered, "1", "")), field())
	_, err = s.Apply(t.Context(), task.ID, nil, shim.Change{Ask: []shim.Question{{Key: "r"}}})
	must(t, err)
	same(t, string(pack(nil, "q", "", "", "stream", stateAnswered, "1", "", "r", "", "", "", stateOpen, "", "")), field())
}
