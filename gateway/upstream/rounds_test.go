package upstream

import (
	"encoding/json"
	"fmt"
	"testing"

	"taskgate/shim"
)

func TestRoundOf(t *testing.T) {
	session := shim.Session{Capabilities: json.RawMessage(`{"elicitation":{},"roots":{}}`)}
	for _, c := range []struct{ result, want string }{
		{`{"requestState":"s\u0041"}`, `[] "s\u0041"`},
		{`{"inputRequests":{"b":{"method":"elicitation/create","params":{"n":1.0}},"a":{"method":"roots/list"}}}`,
			`[b elicitation/create {"n":1.0} a roots/list ] `},
		{`{"inputRequests":{"a":{"method":"sampling/createMessage","params":{}}}}`, "refused"},
		{`{"inputRequests":{"a":{"method":"elicitation/create","params":{"mode":"url"}}}}`, "refused"},
		{`{"inputRequests":{"a":{"method":"tools/call"}}}`, "refused"},
	} {
		round, refusal := roundOf(session, json.RawMessage(c.result))
		got := "refused"
		if refusal == nil {
			var questions []string
			for _, q := range round.Questions {
				questions = append(questions, q.Key, q.Method, string(q.Params))
			}
			got = fmt.Sprintf("%s %s", questions, round.State)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.result, got, c.want)
		}
	}
}

func TestRetried(t *testing.T) {
	answers := map[string]json.RawMessage{"b": json.RawMessage(`{"x":1.0}`), "a": json.RawMessage(`{}`)}
	for _, c := range []struct {
		params string
		retry  *shim.Retry
		want   string
	}{
		{`{"name":"t"}`, nil, `{"name":"t"}`},
		{`{"name":"t"}`, &shim.Retry{Answers: answers, State: json.RawMessage(`"s\u0041"`)},
			`{"name":"t","inputResponses":{"a":{},"b":{"x":1.0}},"requestState":"s\u0041"}`},
		{`{"inputResponses":{"old":{}},"name":"t","requestState":"old"}`, &shim.Retry{Answers: answers},
			`{"name":"t","inputResponses":{"a":{},"b":{"x":1.0}}}`},
		{`{"name":"t","requestState":"old"}`, &shim.Retry{State: json.RawMessage(`"new"`)}, `{"name":"t","requestState":"new"}`},
	} {
		if got := retried(json.RawMessage(c.params), c.retry); string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.params, got, c.want)
		}
	}
}
