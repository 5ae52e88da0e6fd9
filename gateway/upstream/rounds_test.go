package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/shimtest/fake"
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
		round, refusal, err := roundOf(session, json.RawMessage(c.result))
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
		_, refusal, err := roundOf(shim.Session{Capabilities: json.RawMessage(capabilities)}, form)
		if err != nil || refused != (refusal != nil) || refused && string(refusal.Data) != `{"requiredCapabilities":{"elicitation":{"form":{}}}}` {
			t.Errorf("a form with %s: %+v, %v", capabilities, refusal, err)
		}
	}
}

// What a modern server wants with its result does not depend on how the caller can be
// asked: it is told the same of what is out of place, and may always be called again.
func TestInputRequired(t *testing.T) {
	for _, c := range []struct{ result, none, able string }{
		{`{"resultType":"input_required","requestState":"s"}`, "round", "round"},
		{`{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}`, "-32603", "round"},
		{`{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage"}},"requestState":"s"}`, "-32021", "-32021"},
		{`{"resultType":"input_required","inputRequests":{"a":{"method":"tools/list"}},"requestState":"s"}`, "protocol", "protocol"},
		{`{"resultType":"input_required"}`, "protocol", "protocol"},
	} {
		bubble(t, fake.Modern, Config{}, func(t *testing.T, s *fake.Server, h *HTTP) {
			s.Tool("t", fake.Result(c.result))
			for name, change := range map[string]func(*shim.Request){
				"none":   func(*shim.Request) {},
				"relay":  func(r *shim.Request) { r.Relay = true },
				"rounds": func(r *shim.Request) { r.Rounds = true },
				"both":   func(r *shim.Request) { r.Relay, r.Rounds = true, true },
			} {
				r := in("a", `{"roots":{}}`)
				change(&r)
				want := c.able
				if name == "none" {
					want = c.none
				}
				reply, err := h.Call(t.Context(), r, nil)
				ue, _ := errors.AsType[*shim.UpstreamError](err)
				got := "?"
				switch {
				case ue != nil:
					got = ue.Kind
				case reply.Error != nil:
					got = fmt.Sprint(reply.Error.Code)
				case reply.InputRequired && reply.Round != nil:
					got = "round"
				}
				if got != want {
					t.Errorf("%s, %s: %s, want %s", c.result, name, got, want)
				}
			}
		})
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
		if got := withAnswers(json.RawMessage(c.params), c.retry); string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.params, got, c.want)
		}
	}
}
