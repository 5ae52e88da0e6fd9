package gateway

import (
	"context"
	"encoding/json"

	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
	"taskgate/shim"
)

// Leg is what the gateway uses of an upstream besides tools/call, which goes
// through the shim.
type Leg interface {
	// Call sends one request and blocks for its reply.
	Call(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error)
	// Notify sends a notification in a session that exists.
	Notify(ctx context.Context, s shim.Session, n shim.Notification) error
	// Listen hands over notifications that belong to no call, until ctx ends.
	Listen(ctx context.Context, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error
	// Describe says what the server is.
	Describe(ctx context.Context, s shim.Session) (Server, error)
	// Tool finds a tool by name; fresh lists the tools again. A tool that is not
	// listed is the zero Tool.
	Tool(ctx context.Context, s shim.Session, name string, fresh bool) (Tool, error)
	// EndSession says that the session of this key (Session.Key) has ended.
	EndSession(ctx context.Context, key string)
}

// Server is what an upstream says of itself.
type Server struct {
	Era          mcp.Era
	Version      string
	Capabilities json.RawMessage
	Info         json.RawMessage
	Instructions string
	Raw          json.RawMessage // the InitializeResult or DiscoverResult
}

// Tool is a tool as the upstream lists it.
type Tool struct {
	Raw     json.RawMessage
	Params  []mcpheader.Param // the arguments mirrored in headers
	Invalid error             // why an HTTP client must not offer the tool
}
