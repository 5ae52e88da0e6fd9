package reading

import (
	"encoding/json"
	"fmt"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/shim"
)

func TestRoundOf(t *testing.T) {
	session := shim.Session{Capabilities: json.RawMessage(`{"elicitation":{},"roots":{}}`)}
	for _, c := range []struct{ result, want string }{
		{`{"requestState":"s\u0041"}`, `[] "s\u0041"`},
		{`{"inputRequests":{}}`, `[] `},
		{`{"inputRequests":{"b":{"method":"elicitation/create","params":{"n":1.0}},"a":{"method":"roots/list"}}}`,
			`[b elicitation/create {"n":1.0} a roots/list ] `},
		{`{"inputRequests":{"a":{"method":"sampling/createMessage","params":{}}}}`, `refused {"requiredCapabilities":{"sampling":{}}}`},
		{`{"inputRequests":{"a":{"method":"elicitation/create","params":{"mode":"url"}}}}`,
			`refused {"requiredCapabilities":{"elicitation":{"url":{}}}}`},
		{`{"inputRequests":{"a":{"method":"elicitation/create","params":{"mode":"url"}},"b":{"method":"roots/list"},"c":{"method":"sampling/createMessage"}}}`,
			`refused {"requiredCapabilities":{"elicitation":{"url":{}},"sampling":{}}}`},
		{`{"inputRequests":{"a":{"method":"tools/call"}}}`, "not MCP"},
		{`{"inputRequests":{"a":{"method":"sampling/createMessage"},"b":{}}}`, "not MCP"},
		{`{"inputRequests":[]}`, "not MCP"},
		{`{"requestState":null}`, "not MCP"},
		{`{}`, "not MCP"},
	} {
		round, refusal, err := ReadRound(session, json.RawMessage(c.result))
		got := "not MCP"
		switch {
		case refusal != nil:
			got = "refused " + string(refusal.Data)
			if refusal.Code != mcp.CodeMissingCapability {
				t.Errorf("%s: code %d", c.result, refusal.Code)
			}
		case err == nil:
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
	form := json.RawMessage(`{"inputRequests":{"a":{"method":"elicitation/create","params":{}}}}`)
	for capabilities, refused := range map[string]bool{`{"elicitation":{"url":{}}}`: true, `{}`: true, `{"elicitation":{"form":{},"url":{}}}`: false} {
		_, refusal, err := ReadRound(shim.Session{Capabilities: json.RawMessage(capabilities)}, form)
		if err != nil || refused != (refusal != nil) || refused && string(refusal.Data) != `{"requiredCapabilities":{"elicitation":{"form":{}}}}` {
			t.Errorf("a form with %s: %+v, %v", capabilities, refusal, err)
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
		if got := WithAnswers(json.RawMessage(c.params), c.retry); string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.params, got, c.want)
		}
	}
}
