package mcp

import "taskgate/internal/jsonrpc"

// MayRequireInput reports whether a method may be answered by an InputRequiredResult (protocol.md
// 2.7).
func MayRequireInput(method string) bool {
	switch method {
	case MethodToolsCall, MethodPromptsGet, MethodResourcesRead:
		return true
	}
	return false
}

// MayBeAsked reports whether a client that declares these capabilities takes any questions.
func MayBeAsked(capabilities []byte) bool {
	for _, kind := range []string{"elicitation", "sampling", "roots"} {
		if v, _ := jsonrpc.Get(capabilities, kind); jsonrpc.IsObject(v) {
			return true
		}
	}
	return false
}
