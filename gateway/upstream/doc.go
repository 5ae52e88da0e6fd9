// Package upstream is the client of an MCP server. [HTTP] reaches one over Streamable
// HTTP, of either era; it implements shim.Upstream. In come the requests of the shim and
// of the gateway; out go the server's replies, and to a Sink what it says before.
//
// A call takes this path. [HTTP.Call] asks eras (era.go) in which era the server is
// spoken to for this client, found out by server/discover and by a first session. What the server says of itself, and its tools
// (tools.go), are asked for again when they are old (remembered.go). A legacy call gets a session
// (session_table.go, session.go) and is described by legacy.go, a modern one by
// modern.go. Both fill in an exchange (exchange.go). It records in a checkpoint that it is
// about to be sent (checkpoint.go), posts the request exactly once and reads messages
// off the response (inbound.go) until the answer arrives. Progress and logs go to the
// Sink (notify.go), questions into the mailbox of the call (questions.go), and a broken
// stream is resumed (resume.go). The answer becomes a Reply (reply.go) or an
// UpstreamError (errors.go).
//
// A server may answer that it has made a task of the call (task.go). Then the task is followed
// to its end: task_await.go for a legacy server, task_poll.go for a modern one.
//
// What a legacy server says outside of any call comes on the GET stream of its session
// (get_stream.go): notifications go to the listeners (listeners.go), and questions to a
// call, or else to the client of the session (route.go, session_question.go).
//
// Three rules hold everywhere. A request is sent exactly once, unless an answer
// proves that the server did not begin it (design.md 0.11; again.go is the only
// place that repeats). A payload is spliced, never re-marshalled (0.8). What the
// server says of itself, its address and its headers go into logs and the Err of
// an error, never into a message that a client may see.
//
// Another transport than HTTP implements Transport: it gives the responses that a Streamable
// HTTP server would give. That over stdio is in the package stdio. The package sse stands before
// net/http and does the same for servers of HTTP+SSE. The wire (wire.go) sends
// what is answered (request and accept, called by exchange.post and exchange.replay) and what
// is not (tell, finish), and hands up an inbound, which is a sequence of messages, or an
// error. Above it HTTP shows in the headers of a modern request (exchange.header), in the
// head of a response (exchange.response: the session id, and the HTTP version for spans), and
// in statusError.
//
// The package knows nothing of clients, tasks, stores or policy.
package upstream
