package reading

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
)

// answerCases are answers by the method that they answer; wrong is what is said of one
// that is none.
var answerCases = []struct{ method, result, wrong string }{
	{"elicitation/create", `{"action":"accept","content":{"a":"x","b":1,"c":true,"d":["x","y"],"e":[]}}`, ""},
	{"elicitation/create", `{"action":"decline"}`, ""},
	{"elicitation/create", `{"action":"cancel","_meta":{"x":{"y":[]}},"other":{}}`, ""},
	{"elicitation/create", `{}`, "action must be"},
	{"elicitation/create", `{"action":"yes"}`, "action must be"},
	{"elicitation/create", `{"action":null}`, "action must be"},
	{"elicitation/create", `{"action":["accept"]}`, "action must be"},
	{"elicitation/create", `{"error":{"code":-1,"message":"no"}}`, "action must be"},
	{"elicitation/create", `{"action":"accept","content":"x"}`, "content must be an object"},
	{"elicitation/create", `{"action":"accept","content":[]}`, "content must be an object"},
	{"elicitation/create", `{"action":"accept","content":{"a":{}}}`, "values of content"},
	{"elicitation/create", `{"action":"accept","content":{"a":["x",1]}}`, "values of content"},
	{"elicitation/create", `[]`, "must be an object"},
	{"elicitation/create", `"accept"`, "must be an object"},
	{"elicitation/create", ``, "must be an object"},
	{"sampling/createMessage", `{"role":"assistant","content":{"type":"text","text":"!"},"model":"m"}`, ""},
	{"sampling/createMessage", `{"role":"user","content":[{"type":"text","text":"!"}],"model":"m","stopReason":"endTurn"}`, ""},
	{"sampling/createMessage", `{"role":"user","content":[],"model":"m"}`, ""},
	{"sampling/createMessage", `{"content":{"type":"text","text":"!"},"model":"m"}`, "role must be"},
	{"sampling/createMessage", `{"role":"system","content":{"type":"text","text":"!"},"model":"m"}`, "role must be"},
	{"sampling/createMessage", `{"role":"user","content":{"type":"text","text":"!"}}`, "model must be"},
	{"sampling/createMessage", `{"role":"user","model":"m"}`, "content must be"},
	{"sampling/createMessage", `{"role":"user","content":"!","model":"m"}`, "content must be"},
	{"sampling/createMessage", `{"role":"user","content":{"text":"!"},"model":"m"}`, "content must be"},
	{"sampling/createMessage", `{"role":"user","content":["!"],"model":"m"}`, "content must be"},
	{"sampling/createMessage", `{"action":"cancel"}`, "role must be"},
	{"roots/list", `{"roots":[{"uri":"file:///r"},{"uri":"file:///s","name":"s"}]}`, ""},
	{"roots/list", `{"roots":[]}`, ""},
	{"roots/list", `{}`, "roots must be"},
	{"roots/list", `{"roots":{}}`, "roots must be"},
	{"roots/list", `{"roots":["file:///r"]}`, "have a uri"},
	{"roots/list", `{"roots":[{"name":"r"}]}`, "have a uri"},
}

// resultDefinitions are what the official schemas call these answers.
var resultDefinitions = map[string]string{
	"elicitation/create": "ElicitResult", "sampling/createMessage": "CreateMessageResult", "roots/list": "ListRootsResult",
}

// What is taken for an answer fits the official schema, and what is not does not.
func TestCheckAnswer(t *testing.T) {
	for _, c := range answerCases {
		wrong := CheckAnswer(c.method, json.RawMessage(c.result))
		if wrong != c.wrong && (c.wrong == "" || !strings.Contains(wrong, c.wrong)) {
			t.Errorf("%s %s: %q, want %q", c.method, c.result, wrong, c.wrong)
		}
		if err := schematest.Check(mcp.Version20260728, resultDefinitions[c.method], json.RawMessage(c.result)); (err == nil) != (c.wrong == "") {
			t.Errorf("%s %s: the schema says %v", c.method, c.result, err)
		}
	}
	// Beyond the schema: the Python SDK writes null for what is not there.
	for _, tolerated := range []string{`{"action":"decline","content":null}`, `{"action":"accept","content":{"a":null,"b":1.5}}`} {
		if wrong := CheckAnswer("elicitation/create", json.RawMessage(tolerated)); wrong != "" {
			t.Errorf("%s: %s", tolerated, wrong)
		}
	}
}

// Whatever a client makes of an answer, what is wrong with it is said in words that
// repeat nothing of it, and what has passed is an answer as servers know it.
func FuzzCheckAnswer(f *testing.F) {
	for _, c := range answerCases {
		f.Add(c.method, c.result)
	}
	f.Fuzz(func(t *testing.T, method, result string) {
		msg, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"result":` + result + `}`))
		if err != nil {
			return
		}
		wrong := CheckAnswer(method, msg.Result)
		if len(wrong) > 100 {
			t.Errorf("%q", wrong)
		}
		if wrong != "" || resultDefinitions[method] == "" {
			return
		}
		var v map[string]any
		if err := json.Unmarshal(msg.Result, &v); err != nil {
			t.Fatalf("%s: %v", result, err)
		}
		if !isAnswer(method, v) {
			t.Errorf("%s passes for an answer to %s", result, method)
		}
	})
}

// isAnswer is the least that a server looks at.
func isAnswer(method string, v map[string]any) bool {
	switch method {
	case "elicitation/create":
		return slices.Contains([]any{"accept", "decline", "cancel"}, v["action"])
	case "sampling/createMessage":
		_, model := v["model"].(string)
		return model && slices.Contains([]any{"user", "assistant"}, v["role"]) && v["content"] != nil
	}
	roots, ok := v["roots"].([]any)
	return ok && !slices.ContainsFunc(roots, func(root any) bool {
		r, _ := root.(map[string]any)
		_, ok := r["uri"].(string)
		return !ok
	})
}
