package gateway

import (
	"encoding/json"
	"fmt"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// The functions here turn what one era says into what the other expects
// (protocol.md 7.1, 7.5). They are pure, and splice: every byte that they are not
// asked to change survives (design.md 0.8).

// Caching hints where the upstream gives none (2.9). Lists may change at any time
// and nobody promised otherwise, so they are stale at once; what is known of the
// upstream itself changes only when it is redeployed.
const (
	listTTL     = `0`
	discoverTTL = `60000`
	cacheScope  = `"private"` // nothing is known to be the same for everybody (Z13)
)

// unrelated drops the mark that ties a message to a task of the upstream's own:
// that task is not known to the client (H11, H14, T29).
func unrelated(obj json.RawMessage) json.RawMessage {
	return without(obj, "_meta", mcp.MetaRelatedTask)
}

// modernResult is a result as a modern client must get it: with a resultType, with
// the identity of who made it, and with caching hints where the method has them.
// It looks through the result once, however large it is.
func modernResult(method string, upstream mcp.Era, result, identity json.RawMessage) (json.RawMessage, error) {
	if !jsonrpc.IsObject(result) {
		return nil, notMCP(fmt.Errorf("the result of %s is not an object", method))
	}
	typ := mcp.ResultComplete
	seen := make(map[string]bool, 4)
	result = jsonrpc.Edit(result, func(name string, value json.RawMessage) json.RawMessage {
		switch name {
		case "resultType":
			if upstream != mcp.Modern { // to a legacy server the word means nothing
				value = json.RawMessage(`"` + mcp.ResultComplete + `"`)
			}
			typ, _ = jsonrpc.GetString(value)
		case "_meta":
			value = withDefault(without(value, mcp.MetaRelatedTask), identity, mcp.MetaServerInfo)
		case "requestState":
			return wrapState(value)
		case "ttlMs", "cacheScope":
		default:
			return value
		}
		seen[name] = true
		return value
	})
	if typ != mcp.ResultComplete && (typ != mcp.ResultInputRequired || !asks(method)) {
		// A task that nobody asked for (T16), or a question out of place (2.7).
		return nil, notMCP(fmt.Errorf("resultType %q for %s", typ, method))
	}
	return jsonrpc.Extend(result, missingMembers(method, identity, seen)), nil
}

// missingMembers are those that a modern result must have and this one has not.
func missingMembers(method string, identity json.RawMessage, seen map[string]bool) []byte {
	var b []byte
	add := func(name string, value string) {
		if seen[name] {
			return
		}
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), `":`...)
		b = append(b, value...)
	}
	add("resultType", `"`+mcp.ResultComplete+`"`)
	if cacheable(method) {
		ttl := listTTL
		if method == mcp.MethodDiscover {
			ttl = discoverTTL
		}
		add("ttlMs", ttl)
		add("cacheScope", cacheScope)
	}
	add("_meta", `{"`+mcp.MetaServerInfo+`":`+string(identity)+`}`)
	return b
}

// cacheable reports the methods whose results must carry caching hints (2.9).
func cacheable(method string) bool {
	switch method {
	case mcp.MethodDiscover, mcp.MethodToolsList, mcp.MethodPromptsList, mcp.MethodResourcesList,
		mcp.MethodResourceTemplatesList, mcp.MethodResourcesRead:
		return true
	}
	return false
}

// notMCP says that an upstream answered what the protocol does not allow.
func notMCP(err error) error {
	return &shim.UpstreamError{Kind: "protocol", Message: "the server's answer is not valid", Err: err}
}

// ours are the members of params._meta that only mean something between a client
// and the server it talks to. The leg adds its own; the trace travels in the
// context.
func ours(key string) bool {
	switch key {
	case mcp.MetaProtocolVersion, mcp.MetaClientCapabilities, mcp.MetaClientInfo, mcp.MetaLogLevel,
		mcp.MetaProgressToken, mcp.MetaTraceparent, mcp.MetaTracestate, mcp.MetaBaggage, mcp.MetaRelatedTask,
		mcp.ExtensionPartials:
		return true
	}
	return false
}

// foreignMeta is _meta without the members that are ours; nil if none is left.
func foreignMeta(meta json.RawMessage) json.RawMessage {
	var out []byte
	for name, value := range jsonrpc.Members(meta) {
		if ours(name) {
			continue
		}
		out = append(out, ',')
		out = jsonrpc.AppendString(out, name)
		out = append(append(out, ':'), value...)
	}
	if out == nil {
		return nil
	}
	out[0] = '{'
	return append(out, '}')
}

// upstreamParams are the params of a modern request for an upstream of this era.
func upstreamParams(method string, upstream mcp.Era, params json.RawMessage) (json.RawMessage, error) {
	meta, _ := jsonrpc.Get(params, "_meta")
	if foreign := foreignMeta(meta); foreign != nil {
		params = with(params, foreign, "_meta")
	} else {
		params = without(params, "_meta")
	}
	if method == mcp.MethodToolsCall {
		params = without(params, "task") // not a parameter of this era (T11)
	}
	if asks(method) {
		return retryParams(upstream, params)
	}
	return params, nil
}

// retryParams checks what a client sends along when it tries again with answers
// (2.7), and passes it on to who asked.
func retryParams(upstream mcp.Era, params json.RawMessage) (json.RawMessage, error) {
	if args, ok := jsonrpc.Get(params, "arguments"); ok && !jsonrpc.IsObject(args) {
		return nil, invalidParams("params.arguments must be an object")
	}
	if responses, ok := jsonrpc.Get(params, "inputResponses"); ok && !isResponses(responses) {
		return nil, invalidParams("params.inputResponses must be an object of objects")
	}
	if state, ok := jsonrpc.Get(params, "requestState"); ok {
		if _, ok := jsonrpc.GetString(state); !ok {
			return nil, invalidParams("params.requestState must be a string")
		}
	}
	if upstream != mcp.Modern { // it knows nothing of either; the state can only be ours
		return withoutRetry(params), nil
	}
	return unwrapState(params), nil
}

// withoutRetry are params without what makes a request a retry.
func withoutRetry(params json.RawMessage) json.RawMessage {
	return without(without(params, "inputResponses"), "requestState")
}

// isResponses reports whether v is a map of results (2.7, T34).
func isResponses(v json.RawMessage) bool {
	if !jsonrpc.IsObject(v) {
		return false
	}
	for _, r := range jsonrpc.Members(v) {
		if !jsonrpc.IsObject(r) {
			return false
		}
	}
	return true
}

// missingCapabilities is what a server requires and a client did not declare; nil
// for nothing.
func missingCapabilities(required, declared json.RawMessage) json.RawMessage {
	var missing json.RawMessage
	for name, want := range jsonrpc.Members(required) {
		if has, ok := jsonrpc.Get(declared, name); ok {
			if want = missingCapabilities(want, has); want == nil {
				continue
			}
		}
		if missing == nil {
			missing = json.RawMessage(`{}`)
		}
		missing = with(missing, want, name)
	}
	return missing
}

// upstreamCapabilities are the client's, without the abilities that are between it
// and the gateway: tasks, in either spelling, and partials.
func upstreamCapabilities(c json.RawMessage) json.RawMessage {
	c = without(c, "extensions", mcp.ExtensionTasks)
	c = without(c, "extensions", mcp.ExtensionPartials)
	return without(c, "tasks")
}
