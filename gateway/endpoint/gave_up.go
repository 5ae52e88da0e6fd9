package endpoint

import (
	"regexp"
	"slices"
	"time"
)

// A client that gives up a call because it took too long says so only in its own words, or not at all. A client that
// cancels for its user sends the same notification, and closes the same connection. So the words decide, and where there
// are none, the time (design.md 0.35).

// gaveUpReasons are the reasons of notifications/cancelled with which clients give up. Any other reason, and none, is a
// user's. Sources:
//
//   - TypeScript SDK 1.32.2, shared/protocol.js: String(McpError) of -32001; an abort has the same code for the caller of
//     the SDK, but sends "AbortError: …" or the program's own words.
//   - TypeScript SDK 2.0, client: String(SdkError).
//   - Go SDK 1.8.0, mcp/transport.go, and mcp-go 1.2.1, client/client.go (over stdio): ctx.Err().Error(); an abort is
//     "context canceled".
//   - Python SDK 2, shared/jsonrpc_dispatcher.py: "timed out after 60.0s"; an abort is "caller cancelled". Its versions 1
//     say nothing, and keep the connection.
//   - Rust SDK (rmcp), service.rs: REQUEST_TIMEOUT_REASON.
//
// The C# SDK names no reason, and the Java SDK sends nothing and keeps the connection.
var gaveUpReasons = []*regexp.Regexp{
	regexp.MustCompile(`^McpError: MCP error -32001: (Request timed out|Maximum total timeout exceeded)$`),
	regexp.MustCompile(`^SdkError: (Request timed out|Maximum total timeout exceeded)$`),
	regexp.MustCompile(`^context deadline exceeded$`),
	regexp.MustCompile(`^timed out after [0-9.]+s$`),
	regexp.MustCompile(`^request timeout$`),
}

// maxReason bounds the reason that is looked at, in bytes: those of the table are short.
const maxReason = 100

// IsGivingUp reports whether a client that cancels with this reason gives up.
func IsGivingUp(reason string) bool {
	return len(reason) <= maxReason && slices.ContainsFunc(gaveUpReasons, func(r *regexp.Regexp) bool { return r.MatchString(reason) })
}

// clientWaits are the times that clients wait by default, for their call or since the last message about it. Sources:
//
//   - 30 s: the Python SDK's timeout of its HTTP client.
//   - 60 s: DEFAULT_REQUEST_TIMEOUT_MSEC of the TypeScript SDK, and with it most agents; proxy_read_timeout of nginx and
//     the idle timeout of AWS load balancers.
//   - 120 s: the read timeout of Cloudflare's proxy.
//   - 240 s: Claude Desktop.
//   - 300 s: bodyTimeout of undici (fetch of Node), sse_read_timeout of the Python SDK, Codex, Claude Code.
//   - 600 s: Gemini CLI, Qwen Code.
var clientWaits = []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 10 * time.Minute}

// waitSlack is how far the end of a connection may be from such a time: the SDKs are exact to some milliseconds, and the
// rest is for the way of the messages.
const waitSlack = 500 * time.Millisecond

// IsClientWait reports whether a client gives up by default that has left so long after its call, and after the last
// message to it.
func IsClientWait(call, message time.Duration) bool {
	return slices.ContainsFunc(clientWaits, func(wait time.Duration) bool {
		return (call-wait).Abs() <= waitSlack || (message-wait).Abs() <= waitSlack
	})
}
