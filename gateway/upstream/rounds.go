package upstream

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// askedTooMuch answers in place of a server that asks for what the client behind the
// gateway did not declare: it should have refused the call (protocol.md 2.7), and no
// answer to such a question can be given.
var askedTooMuch = &shim.RPCError{
	Code: mcp.CodeInternal, Message: "the server asked for input that the client did not declare it can give",
}

// roundOf reads what an InputRequiredResult asks for. Its parts are copied: the
// result is not kept.
func roundOf(s shim.Session, result json.RawMessage) (*shim.Round, *shim.RPCError) {
	round := &shim.Round{}
	if state, ok := jsonrpc.Get(result, "requestState"); ok {
		round.State = raw(state)
	}
	requests, _ := jsonrpc.Get(result, "inputRequests")
	for name, request := range jsonrpc.Members(requests) {
		method, _ := jsonrpc.GetString(request, "method")
		params, _ := jsonrpc.Get(request, "params")
		if !MayAsk(s, method, params) {
			return nil, askedTooMuch
		}
		round.Questions = append(round.Questions, shim.Question{Key: name, Method: method, Params: raw(params)})
	}
	return round, nil
}

// openFirst reads the pages that a server of 2025-11-25 wants opened before it begins
// a request (-32042), as a round of questions. nil stands for an error that is only an
// error: another one, or one that this client cannot be asked about.
func openFirst(s shim.Session, e *shim.RPCError) *shim.Round {
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
		round.Questions = append(round.Questions, shim.Question{Key: strconv.Itoa(len(round.Questions)), Method: mcp.MethodElicit, Params: raw(page)})
	}
	if len(round.Questions) == 0 {
		return nil
	}
	return round
}

// retried are the params of a request that is made again with answers, which take
// the place of those of an earlier round.
func retried(params json.RawMessage, retry *shim.Retry) json.RawMessage {
	if retry == nil {
		return params
	}
	for _, name := range []string{"inputResponses", "requestState"} {
		if out, err := jsonrpc.Delete(params, name); err == nil {
			params = out
		}
	}
	if len(params) == 0 {
		params = json.RawMessage("{}")
	}
	if retry.Answers != nil {
		answers := []byte("{}")
		for _, name := range slices.Sorted(maps.Keys(retry.Answers)) {
			answers = jsonrpc.Extend(answers, append(append(jsonrpc.AppendString(nil, name), ':'), retry.Answers[name]...))
		}
		params = jsonrpc.Extend(params, append([]byte(`"inputResponses":`), answers...))
	}
	if retry.State != nil {
		params = jsonrpc.Extend(params, append([]byte(`"requestState":`), retry.State...))
	}
	return params
}
