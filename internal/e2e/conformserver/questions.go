package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// form is an elicitation of one required field.
func form(message, field, kind string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: message, RequestedSchema: &jsonschema.Schema{
		Type:       "object",
		Properties: map[string]*jsonschema.Schema{field: {Type: kind}},
		Required:   []string{field},
	}}
}

// sample asks the client's model.
func sample(question string) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{
		Messages:  []*mcp.SamplingMessage{{Role: "user", Content: text(question)}},
		MaxTokens: 100,
	}
}

// accepted is what the user filled in, if the answer to this key is a form that
// was accepted.
func accepted(answers mcp.InputResponseMap, key string) (map[string]any, bool) {
	elicited, ok := answers[key].(*mcp.ElicitResult)
	if !ok || elicited.Action != "accept" {
		return nil, false
	}
	return elicited.Content, true
}

// interview is a tool that asks its questions, one round after the other, before
// it answers. With state, the round it is in travels with the client, sealed.
type interview struct {
	name   string
	state  bool
	rounds []mcp.InputRequestMap
	work   time.Duration // how long it takes once it knows everything
}

func interviews() []interview {
	const tool = "test_input_required_result_"
	name := form("What is your name?", "name", "string")
	confirm := mcp.InputRequestMap{"confirm": form("Please confirm", "ok", "boolean")}
	roots := &mcp.ListRootsParams{}
	return []interview{
		{tool + "elicitation", false, []mcp.InputRequestMap{{"user_name": name}}, 0},
		{tool + "sampling", false, []mcp.InputRequestMap{{"capital_question": sample("What is the capital of France?")}}, 0},
		{tool + "list_roots", false, []mcp.InputRequestMap{{"client_roots": roots}}, 0},
		{tool + "request_state", true, []mcp.InputRequestMap{confirm}, 0},
		{tool + "tampered_state", true, []mcp.InputRequestMap{confirm}, 0},
		{tool + "multiple_inputs", true, []mcp.InputRequestMap{{
			"user_name": name, "greeting": sample("Generate a greeting"), "client_roots": roots,
		}}, 0},
		{tool + "multi_round", true, []mcp.InputRequestMap{
			{"step1": form("Step 1: What is your name?", "name", "string")},
			{"step2": form("Step 2: What is your favorite color?", "color", "string")},
		}, 0},
	}
}

// jobInterviews are the tools of the task scenarios that ask.
func jobInterviews() []interview {
	return []interview{
		{"confirm_delete", true, []mcp.InputRequestMap{{"confirm": form("Delete the file?", "confirm", "boolean")}}, 0},
		{"multi_input", true, []mcp.InputRequestMap{{
			"name": form("What is your name?", "name", "string"), "color": form("What is your favorite color?", "color", "string"),
		}}, 0},
		{"test_tool_with_task", true, []mcp.InputRequestMap{{"user_name": form("What is your name?", "name", "string")}}, 2 * time.Second},
	}
}

func addQuestionTools(server *mcp.Server, legacy bool) {
	seal := newSealer()
	handler := func(i interview) handler {
		if legacy {
			return i.onTheSpot
		}
		return i.handler(seal)
	}
	for _, i := range interviews() {
		add(server, i.name, "Asks before it answers.", handler(i))
	}
	for _, i := range jobInterviews() {
		add(server, i.name, "Asks before it acts.", handler(i))
	}
	byDeclaration := asksWhatIsDeclared
	if legacy {
		byDeclaration = asksWhatIsDeclaredOnTheSpot
	}
	add(server, "test_input_required_result_capabilities", "Asks only what the client can answer.", byDeclaration)
}

func (i interview) handler(seal sealer) handler {
	return func(ctx context.Context, req *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
		round := 0
		if state := req.Params.RequestState; state != "" {
			var ok bool
			if round, ok = seal.open(state); !ok || round >= len(i.rounds) {
				return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "this is not the state that was handed out"}
			}
		}
		if answered(i.rounds[round], req.Params.InputResponses) {
			round++
		}
		if round == len(i.rounds) {
			if err := wait(ctx, i.work); err != nil {
				return nil, nil, err
			}
			return i.result(req.Params.InputResponses)
		}
		result := &mcp.CallToolResult{InputRequests: i.rounds[round]}
		if i.state {
			result.RequestState = seal.close(round)
		}
		return result, nil, nil
	}
}

// answered reports whether every question has an answer, and every form one that
// was accepted.
func answered(questions mcp.InputRequestMap, answers mcp.InputResponseMap) bool {
	for key, question := range questions {
		if _, isForm := question.(*mcp.ElicitParams); isForm {
			if _, ok := accepted(answers, key); !ok {
				return false
			}
		} else if answers[key] == nil {
			return false
		}
	}
	return true
}

// result repeats the answers, which is what the scenarios look for.
func (i interview) result(answers mcp.InputResponseMap) (*mcp.CallToolResult, any, error) {
	said, err := json.Marshal(answers)
	if err != nil {
		return nil, nil, err
	}
	line := "Hello! "
	if i.state {
		line = "state-ok "
	}
	return &mcp.CallToolResult{Content: []mcp.Content{text(line + string(said))}}, nil, nil
}

func asksWhatIsDeclared(_ context.Context, req *mcp.CallToolRequest, _ map[string]any) (*mcp.CallToolResult, any, error) {
	questions := declaredQuestions(req.ClientCapabilities())
	if len(questions) == 0 || len(req.Params.InputResponses) > 0 {
		return &mcp.CallToolResult{Content: []mcp.Content{text("nothing to ask")}}, nil, nil
	}
	return &mcp.CallToolResult{InputRequests: questions}, nil, nil
}

// declaredQuestions is one that the client can answer, if there is one.
func declaredQuestions(c *mcp.ClientCapabilities) mcp.InputRequestMap {
	switch {
	case c != nil && c.Sampling != nil:
		return mcp.InputRequestMap{"sample": sample("Say something.")}
	case c != nil && c.Elicitation != nil:
		return mcp.InputRequestMap{"name": form("What is your name?", "name", "string")}
	}
	return nil
}

// sealer makes states that only it can have made.
type sealer struct{ key []byte }

func newSealer() sealer {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	return sealer{key}
}

func (s sealer) close(round int) string {
	plain := strconv.Itoa(round)
	return plain + "." + s.mac(plain)
}

func (s sealer) open(state string) (round int, ok bool) {
	plain, mac, _ := strings.Cut(state, ".")
	if !hmac.Equal([]byte(mac), []byte(s.mac(plain))) {
		return 0, false
	}
	if _, err := fmt.Sscan(plain, &round); err != nil {
		return 0, false
	}
	return round, true
}

func (s sealer) mac(plain string) string {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte(plain))
	return hex.EncodeToString(h.Sum(nil))
}
