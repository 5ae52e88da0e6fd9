package translate

import (
	"encoding/json"
	"fmt"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Caching hints that stand in for an upstream's own (2.9). Lists may change at any time, so they are
// stale at once; what is known of the upstream itself changes only when it is redeployed.
const (
	listTTL     = `0`
	discoverTTL = `60000`
	cacheScope  = `"private"` // each caller may get another answer (Z13)
)

// Unrelated drops the mark that ties a message to a task of the upstream's own, which is unknown to
// the client (H11, H14, T29).
func Unrelated(obj json.RawMessage) json.RawMessage {
	return jsonrpc.Without(obj, "_meta", mcp.MetaRelatedTask)
}

// ModernResult is a result as a modern client must get it: with a resultType, with the identity of its
// maker, and with caching hints if the method has them. It reads the result once, and shares its
// memory.
func ModernResult(method string, upstream mcp.Era, result, identity json.RawMessage) (jsonrpc.Spliced, error) {
	if !jsonrpc.IsObject(result) {
		return nil, NotMCP(fmt.Errorf("the result of %s is not an object", method))
	}
	typ := mcp.ResultComplete
	seen := make(map[string]bool, 4)
	out := jsonrpc.Splice(result, func(name string, value json.RawMessage) json.RawMessage {
		switch name {
		case "resultType":
			if upstream != mcp.Modern { // a legacy server may mean anything by the word
				value = json.RawMessage(`"` + mcp.ResultComplete + `"`)
			}
			typ, _ = jsonrpc.GetString(value)
		case "_meta":
			value = jsonrpc.WithDefault(jsonrpc.Without(value, mcp.MetaRelatedTask), identity, mcp.MetaServerInfo)
		case "requestState":
			return wrapState(value)
		case "ttlMs", "cacheScope":
		default:
			return value
		}
		seen[name] = true
		return value
	}, func() []byte { return missingMembers(method, identity, seen) })
	if typ != mcp.ResultComplete && (typ != mcp.ResultInputRequired || !mcp.MayRequireInput(method)) {
		// An unrequested task (T16), or a question out of place (2.7).
		return nil, NotMCP(fmt.Errorf("resultType %q for %s", typ, method))
	}
	return out, nil
}

// ModernReply is ModernResult for a reply. A plain reply is extended unread.
func ModernReply(method string, upstream mcp.Era, reply shim.Reply, identity json.RawMessage) (jsonrpc.Spliced, error) {
	if !reply.Plain || cacheable(method) || reply.Typed && upstream != mcp.Modern {
		return ModernResult(method, upstream, reply.Result, identity)
	}
	return jsonrpc.Extended(reply.Result, missingMembers(method, identity, map[string]bool{"resultType": reply.Typed})), nil
}

// missingMembers are those that a modern result must have and this one lacks.
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

// NotMCP says that an upstream's answer breaks the protocol.
func NotMCP(err error) error {
	return &shim.UpstreamError{Kind: shim.KindProtocol, Message: "the server's answer is not valid", Err: err}
}

// ours are the members of params._meta that only mean something between a client and its direct
// server. The upstream client adds its own; the trace travels in the context.
func ours(key string) bool {
	switch key {
	case mcp.MetaProtocolVersion, mcp.MetaClientCapabilities, mcp.MetaClientInfo, mcp.MetaLogLevel,
		mcp.MetaProgressToken, mcp.MetaTraceparent, mcp.MetaTracestate, mcp.MetaBaggage, mcp.MetaRelatedTask,
		mcp.ExtensionPartials:
		return true
	}
	return false
}

// foreignMeta is _meta with the members that are not ours; nil if that leaves it empty.
func foreignMeta(meta json.RawMessage) json.RawMessage {
	rest, _, left := removeMembers(meta, ours)
	if !left {
		return nil
	}
	return rest
}

// ModernParams are the params of a modern request for an upstream of this era. The members of a retry
// (2.7) go to a modern upstream only: a state that comes back to a legacy one is the gateway's own.
func ModernParams(method string, upstream mcp.Era, params json.RawMessage) json.RawMessage {
	params = upstreamParams(method, params, upstream == mcp.Modern)
	if upstream == mcp.Modern && mcp.MayRequireInput(method) {
		if state, ok := jsonrpc.GetString(params, "requestState"); ok {
			return unwrapState(params, state)
		}
	}
	return params
}

// LegacyParams are the params of a request in a session for an upstream of this era (protocol.md 7.2).
// Only the modern era has retries, so their members are kept from a modern server.
func LegacyParams(method string, upstream mcp.Era, params json.RawMessage) json.RawMessage {
	return upstreamParams(method, params, upstream != mcp.Modern)
}

// upstreamParams removes what only concerns the client and the gateway. The wish for a task goes too:
// the gateway makes the task (T11). retry says that the members of a retry stay. It reads params once.
func upstreamParams(method string, params json.RawMessage, retry bool) json.RawMessage {
	return jsonrpc.Edit(params, func(name string, value json.RawMessage) json.RawMessage {
		switch {
		case name == "_meta":
			return foreignMeta(value)
		case name == "task" && method == mcp.MethodToolsCall:
			return nil
		case (name == "inputResponses" || name == "requestState") && !retry && mcp.MayRequireInput(method):
			return nil
		}
		return value
	})
}
