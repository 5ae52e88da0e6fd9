package mcp

import "slices"

// Keys of params._meta in a modern request (protocol.md 2.2).
const (
	MetaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	MetaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClientInfo         = "io.modelcontextprotocol/clientInfo"
	MetaLogLevel           = "io.modelcontextprotocol/logLevel"
	MetaProgressToken      = "progressToken" // both eras
)

// Keys of the W3C trace context in params._meta, unprefixed on purpose (SEP-414). They are also the
// names of the HTTP headers.
const (
	MetaTraceparent = "traceparent"
	MetaTracestate  = "tracestate"
	MetaBaggage     = "baggage"
)

// Keys of _meta in a server's messages.
const (
	MetaServerInfo     = "io.modelcontextprotocol/serverInfo"     // modern results
	MetaSubscriptionID = "io.modelcontextprotocol/subscriptionId" // on a listen stream
	MetaRelatedTask    = "io.modelcontextprotocol/related-task"   // legacy tasks (L17, L31)
	// MetaPickedUp is the time at which the work of a call began that was picked up by a repeat: the gateway's own.
	MetaPickedUp = "dev.taskgate/picked-up"
	// MetaFallbackMode: A5.
	MetaFallbackMode = "io.modelcontextprotocol/fallback-mode"
)

// LogLevels are the levels of RFC 5424 that MCP uses, least severe first.
var LogLevels = [...]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// LogSeverity returns the position of a level in LogLevels; -1 for any other word.
func LogSeverity(level string) int { return slices.Index(LogLevels[:], level) }
