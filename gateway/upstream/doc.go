// Package upstream is the client of an MCP server of either era. [HTTP] speaks to one over a
// transport.Transport; it implements shim.Upstream. In come the requests of the shim and
// of the gateway; out go the server's replies, and to a Sink what it says before.
//
// Its files stand in five groups, and a group uses only those named before it:
//
//   - Values: the configuration, errors (errors.go), what a server says of itself (server.go), how
//     an answer to server/discover is read (verdict.go), checkpoints (checkpoint.go), replies
//     (reply.go, rounds.go). What is known of the server is in a memory (memory.go), which asks nobody.
//   - The wire (wire.go): the transport to the server, and what all messages have in common. A
//     stream may not be silent for too long (silence.go).
//   - One request, an exchange (exchange.go). It records in a checkpoint that it is about to be sent,
//     posts the request exactly once and reads messages until the answer arrives. Progress and
//     logs go to the Sink (notify.go), questions into the mailbox of the call (questions.go), and a broken
//     stream is resumed (resume.go). Requests in one session share what the server says beside
//     them (calls.go). request.go words a request for an era, trace.go measures it. An exchange whose
//     answer is a task of the server (task.go) is followed to the end of that, at a legacy server
//     (task_await.go) or a modern one (task_poll.go).
//   - The sessions of the legacy era (session_table.go, session.go), opened (initialize.go) and perhaps
//     shared by replicas (shared.go). A server says on the GET stream of a session (get_stream.go)
//     what belongs to no call: notifications go to those who listen (listen_legacy.go), and questions
//     to a call, or else to the client of the session (session_question.go).
//   - The client: it finds out the era (era.go), lists tools (tools.go), and makes an exchange of a
//     call (legacy.go, modern.go), again if the server has not begun it (again.go).
//
// Three rules hold everywhere. A request is sent exactly once, unless an answer
// proves that the server did not begin it (design.md 0.11; again.go is the only
// place that repeats). A payload is spliced, never re-marshalled (0.8). What the
// server says of itself, its address and its headers go into logs and the Err of
// an error, never into a message that a client may see.
//
// The package knows nothing of clients, tasks, stores or policy.
package upstream
