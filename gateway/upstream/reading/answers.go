package reading

import (
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// CheckAnswer says what is wrong with a result as the answer to a question of this method; ""
// says that it is valid. It checks what every server may count on (ElicitResult,
// CreateMessageResult and ListRootsResult of each version, protocol.md 2.7). The server judges
// whether the answer fits the question, such as a form. The text repeats nothing of the answer.
func CheckAnswer(method string, result json.RawMessage) (wrong string) {
	switch {
	case !jsonrpc.IsObject(result):
		return "it must be an object"
	case method == mcp.MethodElicit:
		return checkElicited(result)
	case method == mcp.MethodCreateMessage:
		return checkSampled(result)
	case method == mcp.MethodRootsList:
		return checkRoots(result)
	}
	return ""
}

func checkElicited(result json.RawMessage) string {
	switch action, _ := jsonrpc.GetString(result, "action"); action {
	case "accept", "decline", "cancel":
	default:
		return "action must be accept, decline or cancel"
	}
	content, ok := jsonrpc.Get(result, "content")
	if !ok || string(content) == "null" { // some SDKs write null for an absent member
		return ""
	}
	if !jsonrpc.IsObject(content) {
		return "content must be an object"
	}
	for _, value := range jsonrpc.Members(content) {
		if !isField(value) {
			return "the values of content must be strings, numbers, booleans or lists of strings"
		}
	}
	return ""
}

// isField reports whether a value can be that of a field of a form. null is accepted for the
// Python SDK, whose type for such values has it.
func isField(value json.RawMessage) bool {
	if jsonrpc.IsObject(value) {
		return false
	}
	for e := range jsonrpc.Elements(value) {
		if _, ok := jsonrpc.String(e); !ok {
			return false
		}
	}
	return true
}

func checkSampled(result json.RawMessage) string {
	if role, _ := jsonrpc.GetString(result, "role"); role != "user" && role != "assistant" {
		return "role must be user or assistant"
	}
	if _, ok := jsonrpc.GetString(result, "model"); !ok {
		return "model must be a string"
	}
	content, _ := jsonrpc.Get(result, "content")
	if isBlock(content) {
		return ""
	}
	if len(content) == 0 || content[0] != '[' {
		return "content must be a content block, or a list of them"
	}
	for block := range jsonrpc.Elements(content) {
		if !isBlock(block) {
			return "content must be a list of content blocks"
		}
	}
	return ""
}

func isBlock(v json.RawMessage) bool {
	_, ok := jsonrpc.GetString(v, "type")
	return ok
}

func checkRoots(result json.RawMessage) string {
	roots, _ := jsonrpc.Get(result, "roots")
	if len(roots) == 0 || roots[0] != '[' {
		return "roots must be a list"
	}
	for root := range jsonrpc.Elements(roots) {
		if _, ok := jsonrpc.GetString(root, "uri"); !ok {
			return "each root must have a uri"
		}
	}
	return ""
}
