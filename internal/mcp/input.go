package mcp

// MayRequireInput reports the methods that may be answered by an InputRequiredResult
// (protocol.md 2.7).
func MayRequireInput(method string) bool {
	switch method {
	case MethodToolsCall, MethodPromptsGet, MethodResourcesRead:
		return true
	}
	return false
}
