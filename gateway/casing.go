package gateway

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"

	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// This file refuses params that two readers could read as two requests: a server that ignores the case of
// names, as encoding/json of Go does, reads Name where the gateway reads name.

// spelt are the members that the gateway reads, by their folded names.
var spelt = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"_meta", "name", "uri", "arguments", "task", "taskId", "cursor", "level", "requestId", "inputResponses", "requestState",
		"lastSeqNr", "notifications", "protocolVersion", "capabilities", "clientInfo",
		mcp.MetaProgressToken, mcp.MetaProtocolVersion, mcp.MetaClientCapabilities, mcp.MetaClientInfo, mcp.MetaLogLevel, mcp.MetaRelatedTask,
	} {
		names[fold(name)] = name
	}
	return names
}()

// checkCase refuses params in which, or in whose _meta, two members differ in case only, or a member differs in
// case only from one that the gateway reads. envelope says that _meta has the mark of a modern request. The
// value of the mark is read later: a wrong one is a modern mistake.
func checkCase(id jsonrpc.ID, params []byte) (envelope bool, fail *wire.Failure) {
	meta, odd := findMember(params, "_meta")
	mark, oddMeta := findMember(meta, mcp.MetaProtocolVersion)
	if name := cmp.Or(odd, oddMeta); name != "" {
		fail = wire.InvalidParams("params: the name of the member %q differs in case from another one", name)
		fail.ID, fail.Status = id, http.StatusBadRequest
	}
	return mark != nil, fail
}

// findMember finds the value of a member of an object, and the first name that differs in case only from
// another one, or from one that the gateway reads; "" for none.
func findMember(obj []byte, wanted string) (found json.RawMessage, odd string) {
	seen := make(map[string]bool, 8)
	for name, value := range jsonrpc.Members(obj) {
		folded := fold(name)
		if exact, ok := spelt[folded]; odd == "" && (ok && exact != name || seen[folded]) {
			odd = name
		}
		seen[folded] = true
		if name == wanted {
			found = value
		}
	}
	return found, odd
}

// fold is the same for all names that differ in case only.
func fold(name string) string {
	for i := range len(name) {
		if c := name[i]; c >= 0x80 || 'A' <= c && c <= 'Z' {
			return strings.ToLower(strings.ToUpper(name))
		}
	}
	return name
}
