package reading

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// errRound is the error of an invalid InputRequiredResult (protocol.md 2.7).
func errRound(why string) error {
	return notMCP("the server asked for input, but " + why)
}

// ReadRound reads what an InputRequiredResult asks for, and copies it: the result is dropped. It
// refuses a question that the client's capabilities exclude; the server should have done so
// itself.
func ReadRound(s shim.Session, result json.RawMessage) (*shim.Round, *shim.RPCError, error) {
	round := &shim.Round{}
	state, again := jsonrpc.Get(result, "requestState")
	if again {
		if _, ok := jsonrpc.String(state); !ok {
			return nil, nil, errRound("its state is no string")
		}
		round.State = bytes.Clone(state)
	}
	requests, asks := jsonrpc.Get(result, "inputRequests")
	switch {
	case asks && !jsonrpc.IsObject(requests):
		return nil, nil, errRound("its questions are no object")
	case !asks && !again:
		return nil, nil, errRound("for none, and gave no state")
	}
	none := json.RawMessage(`{}`)
	missing := none
	for name, request := range jsonrpc.Members(requests) {
		method, _ := jsonrpc.GetString(request, "method")
		params, _ := jsonrpc.Get(request, "params")
		ability := abilityFor(method, params)
		if ability == nil {
			return nil, nil, errRound("by a method that is no question")
		}
		if !MayAsk(s, method, params) {
			missing = jsonrpc.With(missing, none, ability...)
		}
		round.Questions = append(round.Questions, shim.Question{Key: name, Method: method, Params: bytes.Clone(params)})
	}
	if len(missing) > len(none) {
		return nil, &shim.RPCError{
			Code: mcp.CodeMissingCapability, Message: "the server asked for input that the client did not declare it can give",
			Data: jsonrpc.With(none, missing, "requiredCapabilities"),
		}, nil
	}
	return round, nil, nil
}

// OpenFirst reads the pages that a server of 2025-11-25 wants opened before it begins a request
// (-32042), as a round of questions. nil says that the error is a plain error, or that this
// client takes no such questions.
func OpenFirst(s shim.Session, e *shim.RPCError) *shim.Round {
	if e.Code != mcp.CodeURLElicitation {
		return nil
	}
	round := &shim.Round{Again: true}
	pages, _ := jsonrpc.Get(e.Data, "elicitations")
	for page := range jsonrpc.Elements(pages) {
		mode, _ := jsonrpc.GetString(page, "mode")
		url, _ := jsonrpc.GetString(page, "url")
		if mode != "url" || url == "" || !MayAsk(s, mcp.MethodElicit, page) {
			return nil
		}
		round.Questions = append(round.Questions, shim.Question{Key: strconv.Itoa(len(round.Questions)), Method: mcp.MethodElicit, Params: bytes.Clone(page)})
	}
	if len(round.Questions) == 0 {
		return nil
	}
	return round
}

// WithAnswers are the params of a request that is repeated with answers. They take the place of
// those of an earlier round.
func WithAnswers(params json.RawMessage, retry *shim.Retry) json.RawMessage {
	if retry == nil {
		return params
	}
	for _, name := range []string{"inputResponses", "requestState"} {
		params = jsonrpc.Without(params, name)
	}
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	if retry.Answers != nil {
		answers := json.RawMessage("{}")
		for _, name := range slices.Sorted(maps.Keys(retry.Answers)) {
			answers = jsonrpc.With(answers, retry.Answers[name], name)
		}
		params = jsonrpc.With(params, answers, "inputResponses")
	}
	if retry.State != nil {
		params = jsonrpc.With(params, retry.State, "requestState")
	}
	return params
}
