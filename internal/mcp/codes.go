package mcp

// Error codes of JSON-RPC 2.0, as MCP uses them (protocol.md 2.5).
const (
	CodeInvalidRequest = -32600 // not one request, notification or response
	CodeMethodNotFound = -32601
	CodeInvalidParams  = -32602 // also: unknown task, tool, prompt, resource, cursor
	CodeInternal       = -32603
)

// Error codes of MCP from 2026-07-28 on.
const (
	CodeHeaderMismatch     = -32020 // a header is missing or differs from the body
	CodeMissingCapability  = -32021 // data.requiredCapabilities
	CodeUnsupportedVersion = -32022 // data.supported, data.requested
)

// CodeDraftUnsupportedVersion is CodeUnsupportedVersion as servers built on drafts spell it (protocol.md 1.2, row 3).
const CodeDraftUnsupportedVersion = -32004

// Error codes that only legacy peers use.
const (
	CodeSessionNotFound  = -32001 // with HTTP status 404
	CodeResourceNotFound = -32002 // modern: -32602
	CodeURLElicitation   = -32042 // 2025-11-25: URLElicitationRequired
)

// The codes between these two, both included, belong to the specification: a modern handler emits
// only defined ones (protocol.md 1.2, row 4).
const (
	CodeReservedFirst = -32099
	CodeReservedLast  = -32020
)

// Reserved reports whether a code belongs to the specification alone.
func Reserved(code int64) bool { return CodeReservedFirst <= code && code <= CodeReservedLast }
