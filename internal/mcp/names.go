// Package mcp spells the Model Context Protocol: the names of its methods, headers, error codes,
// _meta keys and versions, of every revision that the gateway speaks. It holds constants and tables
// and only looks them up, so that a name is written once and a grep finds its uses.
package mcp

import "strings"

// Requests of a client. The comment of each group says in which era its methods exist: "legacy" are
// the revisions that begin with initialize (up to 2025-11-25), "modern" those that carry their
// metadata in each request (protocol.md 2.1).
const (
	// Both eras.
	MethodToolsList             = "tools/list"
	MethodToolsCall             = "tools/call"
	MethodPromptsList           = "prompts/list"
	MethodPromptsGet            = "prompts/get"
	MethodResourcesList         = "resources/list"
	MethodResourceTemplatesList = "resources/templates/list"
	MethodResourcesRead         = "resources/read"
	MethodComplete              = "completion/complete"

	// Modern only.
	MethodDiscover = "server/discover"
	MethodListen   = "subscriptions/listen"

	// Legacy only; a modern server answers -32601 to them.
	MethodInitialize           = "initialize"
	MethodPing                 = "ping"
	MethodSetLevel             = "logging/setLevel"
	MethodResourcesSubscribe   = "resources/subscribe"
	MethodResourcesUnsubscribe = "resources/unsubscribe"
)

// Methods of tasks: get and cancel in both dialects, result and list in that of 2025-11-25, update
// in the extension (protocol.md 3, 4).
const (
	MethodTasksGet    = "tasks/get"
	MethodTasksUpdate = "tasks/update"
	MethodTasksCancel = "tasks/cancel"
	MethodTasksResult = "tasks/result"
	MethodTasksList   = "tasks/list"
)

// IsRequest reports whether a method is a request that clients make, in any version.
func IsRequest(method string) bool {
	switch method {
	case MethodToolsList, MethodToolsCall, MethodPromptsList, MethodPromptsGet, MethodResourcesList,
		MethodResourceTemplatesList, MethodResourcesRead, MethodComplete, MethodDiscover, MethodListen,
		MethodInitialize, MethodPing, MethodSetLevel, MethodResourcesSubscribe, MethodResourcesUnsubscribe,
		MethodTasksGet, MethodTasksUpdate, MethodTasksCancel, MethodTasksResult, MethodTasksList:
		return true
	}
	return false
}

// Questions of a server to its client: requests of their own in the legacy era, inside an
// InputRequiredResult or a task in the modern one (protocol.md 7.4).
const (
	MethodElicit        = "elicitation/create"
	MethodCreateMessage = "sampling/createMessage"
	MethodRootsList     = "roots/list"
)

// Notifications. Clients send Initialized and RootsListChanged, either side sends Cancelled, and
// servers send the others.
const (
	NotifyInitialized          = "notifications/initialized"
	NotifyCancelled            = "notifications/cancelled"
	NotifyProgress             = "notifications/progress"
	NotifyMessage              = "notifications/message"
	NotifyToolsListChanged     = "notifications/tools/list_changed"
	NotifyPromptsListChanged   = "notifications/prompts/list_changed"
	NotifyResourcesListChanged = "notifications/resources/list_changed"
	NotifyResourceUpdated      = "notifications/resources/updated"
	NotifyRootsListChanged     = "notifications/roots/list_changed"
	NotifyElicitationComplete  = "notifications/elicitation/complete"       // 2025-11-25 only
	NotifyAcknowledged         = "notifications/subscriptions/acknowledged" // modern only
	NotifyTask                 = "notifications/tasks"                      // the extension
	NotifyTaskStatus           = "notifications/tasks/status"               // 2025-11-25
	NotifyTaskPartial          = "notifications/tasks/partial"              // SEP-2679
)

// Foreign reports whether a request or notification is outside of all versions of the protocol, and
// so between its peers. Names below tasks/ and notifications/tasks/ are reserved (T48).
func Foreign(method string) bool {
	switch method {
	case MethodElicit, MethodCreateMessage, MethodRootsList,
		NotifyInitialized, NotifyCancelled, NotifyProgress, NotifyMessage, NotifyToolsListChanged,
		NotifyPromptsListChanged, NotifyResourcesListChanged, NotifyResourceUpdated, NotifyRootsListChanged,
		NotifyElicitationComplete, NotifyAcknowledged, NotifyTask:
		return false
	}
	return method != "" && !IsRequest(method) &&
		!strings.HasPrefix(method, "tasks/") && !strings.HasPrefix(method, NotifyTask+"/")
}

// Extensions, as they are named in capabilities.extensions.
const (
	ExtensionTasks    = "io.modelcontextprotocol/tasks"
	ExtensionPartials = "dev.taskgate/partials" // the gateway's own (protocol.md 6.4, point 6)
	// The extensions of authorization. They hold between a client and the party to which it
	// presents its credentials.
	ExtensionClientCredentials       = "io.modelcontextprotocol/oauth-client-credentials"
	ExtensionEnterpriseAuthorization = "io.modelcontextprotocol/enterprise-managed-authorization"
)

// Values of resultType, which every modern result carries (protocol.md 2.1).
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	ResultTask          = "task" // only as the answer to tools/call (T16)
)

// nameParam has, for each method, the member of params that the header Mcp-Name mirrors
// (protocol.md 2.4; the task methods after the extension).
var nameParam = map[string]string{
	MethodToolsCall:     "name",
	MethodPromptsGet:    "name",
	MethodResourcesRead: "uri",
	MethodTasksGet:      "taskId",
	MethodTasksUpdate:   "taskId",
	MethodTasksCancel:   "taskId",
}

// NameParam returns the member of params that the header Mcp-Name mirrors for this method; "" if
// the method lacks that header.
func NameParam(method string) string { return nameParam[method] }
