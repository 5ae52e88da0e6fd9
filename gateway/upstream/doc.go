// Package upstream reaches MCP servers. [HTTP] is the leg for servers behind
// Streamable HTTP of either era; it implements shim.Upstream.
//
// A call takes this path. [HTTP.Call] asks era.go which generation the server
// speaks (found out once, by server/discover). A legacy call gets a session
// (session.go, pool.go) and is described by legacy.go, a modern one by
// modern.go. Both fill in an exchange (exchange.go), which records in a
// checkpoint that it is about to be sent, posts the request exactly once and
// reads messages off the response (inbound.go) until the answer arrives:
// progress and logs go to the Sink (notify.go), questions are asked and answered
// (ask.go), a broken stream is resumed (resume.go). What comes back is turned
// into a Reply or an UpstreamError in reply.go and errors.go.
//
// Three rules hold everywhere. A request is sent exactly once, unless an answer
// proves that the server did not begin it (design.md 0.11; again.go is the only
// place that repeats). A payload is spliced, never re-marshalled (0.8). What the
// server says of itself, its address and its headers go into logs and the Err of
// an error, never into a message that a client may see.
//
// The package knows nothing of clients, tasks, stores or policy.
package upstream
