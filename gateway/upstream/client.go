package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// Client is what the gateway uses of a server besides tools/call, which goes through the
// shim. HTTP is one way to reach a server.
type Client interface {
	Gate
	// Call sends one request and blocks for its reply.
	Call(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error)
	// Notify sends a notification in a session that exists.
	Notify(ctx context.Context, s shim.Session, n shim.Notification) error
	// Listen hands over notifications that belong to no call, until ctx ends.
	Listen(ctx context.Context, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error
	// Describe says what the server is.
	Describe(ctx context.Context, s shim.Session) (Server, error)
	// Tool finds a tool by name, and reports false where the server lists none.
	Tool(ctx context.Context, s shim.Session, name string) (Tool, bool, error)
	// Forget drops what is cached of the tools.
	Forget(s shim.Session)
	// OnSessionQuestion says how the client of a session is asked what its server asks outside of
	// any call. It is called once, before anything else.
	OnSessionQuestion(f SessionAsker)
	// EndSession says that the session of this key (Session.Key) has ended.
	EndSession(ctx context.Context, key string)
}

// HTTP is the client of one MCP server over Streamable HTTP, HTTP+SSE, or a Transport that
// behaves like the former, in whichever era the server speaks. It is safe for concurrent use. It
// implements shim.Upstream.
type HTTP struct {
	wire     *wire
	work     *work.Background
	eras     *eras
	tools    *tools
	sessions *sessionTable
}

var (
	_ Client        = (*HTTP)(nil)
	_ shim.Upstream = (*HTTP)(nil)
)

// New makes the client of one server. It contacts nobody: the server is probed
// when it is first needed. The error says what is wrong with the configuration.
func New(c Config) (*HTTP, error) {
	w, err := newWire(c)
	if err != nil {
		return nil, err
	}
	h := &HTTP{wire: w, work: work.NewBackground(errClosed)}
	h.tools = &tools{client: h, lists: remembered[map[string]Tool]{work: h.work, most: maxLists}}
	h.eras = &eras{wire: w, work: h.work, tools: h.tools, seen: remembered[Server]{work: h.work, most: w.cfg.MaxSeen}}
	h.sessions = &sessionTable{wire: w, work: h.work, eras: h.eras, tools: h.tools, shares: shares{wire: w, work: h.work}}
	return h, nil
}

// Server is what a server says of itself.
type Server struct {
	// Era is that of Version, the version agreed on.
	Era     mcp.Era
	Version string
	// Capabilities and Info are the ServerCapabilities and the Implementation
	// object as received; nil if the server sent none.
	Capabilities json.RawMessage
	Info         json.RawMessage
	Instructions string
	// Raw is the whole InitializeResult or DiscoverResult.
	Raw json.RawMessage
}

// Describe says what kind of server this is, for clients of this era with these
// capabilities, and with that in which era it is spoken to for them. It asks the
// server if it must: for the first time, or because the last answer is old. The old one serves
// as long as the server gives no new one. For a legacy server that takes opening a session;
// one with Key "" that is not shared is ended again. Errors are *shim.UpstreamError.
func (h *HTTP) Describe(ctx context.Context, s shim.Session) (Server, error) {
	srv, err := h.eras.seen.get(ctx, clientsLike(ctx, s), renewWait, func(ctx context.Context) (Server, time.Duration, error) { return h.describe(ctx, s) })
	if srv == nil {
		return Server{}, public(err)
	}
	if err != nil {
		h.wire.log.Debug("what the server says of itself was not renewed", "err", err)
	}
	return srv.value, nil
}

// EndSession says that the session called key (Session.Key) has ended. Its
// upstream sessions are deleted once their last call has ended.
func (h *HTTP) EndSession(ctx context.Context, key string) {
	if key == "" {
		return
	}
	h.sessions.endKey(key)
	h.tools.endSession(key)
}

// Close deletes the upstream sessions that have no calls, closes idle
// connections, and waits until ctx ends for the goroutines of the client. Calls in
// flight belong to their callers and are not touched; sessions that a detached
// call left behind are kept for whoever resumes it.
func (h *HTTP) Close(ctx context.Context) error {
	h.sessions.close()
	err := h.work.Close(ctx)
	if h.wire.older != nil {
		err = errors.Join(err, h.wire.older.Close(ctx))
	}
	h.wire.transport.CloseIdleConnections()
	if t := h.wire.cfg.Transport; t != nil {
		err = errors.Join(err, t.Close(ctx))
	}
	return err
}

// Tool looks a tool up in the server's list as this session sees it, listing
// if there is no list yet or it is old. It reports false for a tool that the
// server does not have. Errors are *shim.UpstreamError.
func (h *HTTP) Tool(ctx context.Context, s shim.Session, name string) (Tool, bool, error) {
	return h.tools.find(ctx, s, name)
}

// Forget drops what is cached of the tools that this session sees, so that the
// next Tool lists them anew.
func (h *HTTP) Forget(s shim.Session) { h.tools.forget(s) }

// Reach finds out whether a connection to the server can be opened: to its host
// and port, or to those of the proxy that leads there. That is all it asks; no
// request is sent, so it costs the server next to nothing and starts no session. Another
// transport than HTTP says for itself whether it reaches the server.
func (h *HTTP) Reach(ctx context.Context) error { return h.wire.dialProbe(ctx) }
