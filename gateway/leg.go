package gateway

import (
	"context"

	"taskgate/gateway/upstream"
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
	Describe(ctx context.Context, s shim.Session) (upstream.Server, error)
	// Tool finds a tool by name, and reports false where the server lists none.
	Tool(ctx context.Context, s shim.Session, name string) (upstream.Tool, bool, error)
	// Forget drops what is cached of the tools.
	Forget(s shim.Session)
	// OnPose says how the client of a session is asked what its server asks outside of
	// any call. It is called once, before anything else.
	OnPose(f upstream.Posing)
	// EndSession says that the session of this key (Session.Key) has ended.
	EndSession(ctx context.Context, key string)
}

// Server is what an upstream says of itself.
type Server = upstream.Server

var _ Leg = (*upstream.HTTP)(nil)
