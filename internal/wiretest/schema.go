package wiretest

import (
	"bytes"
	"net/http/httptest"
	"strings"
	"testing"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/schematest"
)

// Definitions of the official schemas, by method and code.
var (
	modernDefinitions = map[string]string{
		"server/discover": "DiscoverResult", "tools/list": "ListToolsResult", "tools/call": "CallToolResult",
		"prompts/list": "ListPromptsResult", "prompts/get": "GetPromptResult", "resources/list": "ListResourcesResult",
		"resources/templates/list": "ListResourceTemplatesResult", "resources/read": "ReadResourceResult",
		"completion/complete": "CompleteResult", "subscriptions/listen": "SubscriptionsListenResult",
	}
	// TaskDefinitions are those of the tasks extension.
	TaskDefinitions = map[string]string{
		"tasks/get": "GetTaskResult", "tasks/update": "UpdateTaskResult", "tasks/cancel": "CancelTaskResult",
	}
	notificationDefinitions = map[string]string{
		"notifications/progress": "ProgressNotification", "notifications/message": "LoggingMessageNotification",
		"notifications/tools/list_changed":         "ToolListChangedNotification",
		"notifications/prompts/list_changed":       "PromptListChangedNotification",
		"notifications/resources/list_changed":     "ResourceListChangedNotification",
		"notifications/resources/updated":          "ResourceUpdatedNotification",
		"notifications/subscriptions/acknowledged": "SubscriptionsAcknowledgedNotification",
	}
	errorDefinitions = map[int64]string{
		mcp.CodeHeaderMismatch: "HeaderMismatchError", mcp.CodeMissingCapability: "MissingRequiredClientCapabilityError",
		mcp.CodeUnsupportedVersion: "UnsupportedProtocolVersionError",
	}
)

// CheckSchemas validates every message of a response against the official schemas.
// Only the last one is an answer, unless the client left before.
func CheckSchemas(t testing.TB, request jsonrpc.Message, word string, rec *httptest.ResponseRecorder) {
	t.Helper()
	contentType := rec.Header().Get("Content-Type")
	if strings.HasPrefix(contentType, "text/plain") {
		return // answered by the mux: the path or the HTTP method does not exist
	}
	messages := MessagesOf(contentType, rec.Body.Bytes())
	for i, text := range messages {
		m, err := jsonrpc.ParseLenient(text)
		if err != nil {
			t.Errorf("not a message: %v\n%s", err, text)
			continue
		}
		CheckMessage(t, request, m)
		last := i == len(messages)-1
		if word != "leave" && last != (m.Kind != jsonrpc.Notification) {
			t.Errorf("message %d of %d is a %s", i+1, len(messages), m.Kind)
		}
	}
}

// MessagesOf takes a body apart. An event without data has no message.
func MessagesOf(contentType string, body []byte) [][]byte {
	if contentType != mcp.TypeSSE {
		if len(body) == 0 {
			return nil
		}
		return [][]byte{body}
	}
	var out [][]byte
	for line := range bytes.SplitSeq(body, []byte("\n")) {
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok && len(bytes.TrimSpace(data)) > 0 {
			out = append(out, data)
		}
	}
	return out
}

// CheckMessage validates one message of a response.
func CheckMessage(t testing.TB, request, m jsonrpc.Message) {
	t.Helper()
	const version = mcp.Version20260728
	switch m.Kind {
	case jsonrpc.Notification:
		switch def, ok := notificationDefinitions[m.Method]; {
		case ok:
			schematest.Validate(t, version, def, m.Raw)
		case m.Method == mcp.NotifyTask:
			schematest.Validate(t, schematest.TasksExtension, "TaskStatusNotification", m.Raw)
		case m.Method == mcp.NotifyTaskPartial:
			checkPartial(t, request, m)
		default:
			t.Errorf("unexpected notification %s", m.Method)
		}
	case jsonrpc.ErrorResponse:
		def, ok := errorDefinitions[m.Error.Code]
		if !ok {
			def = "JSONRPCErrorResponse"
		}
		schematest.Validate(t, version, def, m.Raw)
	case jsonrpc.Result:
		schematest.Validate(t, version, "JSONRPCResultResponse", m.Raw)
		checkResult(t, version, request.Method, m)
	default:
		t.Errorf("a server must not send a %s", m.Kind)
	}
}

// checkPartial wants partial results only where they were asked for, and official
// content blocks in them: no official schema has the notification.
func checkPartial(t testing.TB, request, m jsonrpc.Message) {
	t.Helper()
	capabilities, _ := jsonrpc.Get(request.Params, "_meta", mcp.MetaClientCapabilities)
	ext, _ := jsonrpc.Get(capabilities, "extensions", mcp.ExtensionPartials)
	seed, _ := jsonrpc.Get(capabilities, "tasks", "streaming", "partial")
	if !jsonrpc.IsObject(ext) && !jsonrpc.IsObject(seed) {
		t.Errorf("a client that did not opt in got %s", m.Raw)
	}
	content, _ := jsonrpc.Get(m.Params, "content")
	for b := range jsonrpc.Elements(content) {
		schematest.Validate(t, mcp.Version20260728, "ContentBlock", b)
	}
}

func checkResult(t testing.TB, version, method string, m jsonrpc.Message) {
	t.Helper()
	typ, _ := jsonrpc.GetString(m.Result, "resultType")
	if _, ok := jsonrpc.Get(m.Result, "_meta", mcp.MetaServerInfo); !ok {
		t.Errorf("result without serverInfo: %s", m.Result)
	}
	switch {
	case typ == mcp.ResultTask && method == mcp.MethodToolsCall:
		schematest.Validate(t, schematest.TasksExtension, "CreateTaskResult", m.Result)
	case typ == mcp.ResultInputRequired:
		schematest.Validate(t, version, "InputRequiredResult", m.Result)
	case typ != mcp.ResultComplete:
		t.Errorf("resultType %q", typ)
	case TaskDefinitions[method] != "":
		schematest.Validate(t, schematest.TasksExtension, TaskDefinitions[method], m.Result)
	default:
		schematest.Validate(t, version, modernDefinitions[method], m.Result)
	}
}
