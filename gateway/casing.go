package gateway

import (
	"net/http"
	"strings"

	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// This file refuses params that two readers could take for two requests: a server that ignores the
// case of names, as encoding/json of Go does, reads Name where the gateway reads name.

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

// checkCase refuses params in which, or in whose _meta, members differ in case only, and members that
// have the name of one that the gateway reads, in other case.
func checkCase(id jsonrpc.ID, params, meta []byte) *wire.Failure {
	for _, obj := range [][]byte{params, meta} {
		if name, ok := variant(obj); ok {
			f := wire.InvalidParams("params: the name of the member %q differs in case from another one", name)
			f.ID, f.Status = id, http.StatusBadRequest
			return f
		}
	}
	return nil
}

// variant finds the first such member of an object.
func variant(obj []byte) (name string, found bool) {
	seen := make(map[string]bool, 8)
	for name := range jsonrpc.Members(obj) {
		folded := fold(name)
		if exact, ok := spelt[folded]; ok && exact != name || seen[folded] {
			return name, true
		}
		seen[folded] = true
	}
	return "", false
}

// fold is the same for all names that differ in case only.
func fold(name string) string { return strings.ToLower(strings.ToUpper(name)) }
