package mcp

// HTTP headers of the Streamable HTTP transport. Names are case-insensitive; the spelling here is
// the canonical one of net/http, which saves lookups in http.Header the normalisation.
const (
	HeaderProtocolVersion = "Mcp-Protocol-Version" // legacy from 2025-06-18 on, and modern
	HeaderSession         = "Mcp-Session-Id"       // legacy
	HeaderMethod          = "Mcp-Method"           // modern
	HeaderName            = "Mcp-Name"             // modern; see NameParam
	HeaderParamPrefix     = "Mcp-Param-"           // modern; per x-mcp-header of a tool's schema
	HeaderLastEventID     = "Last-Event-Id"        // legacy, on GET
)

// Media types of the transport. A client accepts both.
const (
	TypeJSON   = "application/json"
	TypeSSE    = "text/event-stream"
	TypeAccept = TypeJSON + ", " + TypeSSE
)
