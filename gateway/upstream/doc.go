// Package upstream is the client of an MCP server of either era. [ServerClient] speaks to one server over a
// transport.Transport, and implements shim.Upstream. The shim and the gateway hand in requests. The
// server's replies come back; a Sink gets everything that the server says before.
//
// Its files form five groups. A group uses only the groups named before it:
//
//   - Values: the configuration, errors (errors.go), what a server says of itself (server.go), how an
//     answer to server/discover is read (verdict.go), checkpoints (checkpoint.go), replies (reply.go,
//     rounds.go). A memory keeps what is known of the server (memory.go).
//   - The wire (wire.go): the transport to the server, and what all messages have in common. silence.go
//     bounds how long a stream may be silent.
//   - One request, an exchange (exchange.go). It records in a checkpoint that it is about to be sent,
//     posts the request exactly once and reads messages until the answer arrives. Progress and logs go to
//     the Sink (notify.go), questions into the mailbox of the call (questions.go), and a broken stream is
//     resumed (resume.go). The calls in one session share the questions and the progress that come on the
//     GET stream (calls.go). request.go words a request for an era, trace.go measures it. If the answer is
//     a task of the server (task.go), the exchange follows the task to its end, at a legacy server
//     (task_await.go) or a modern one (task_poll.go).
//   - The sessions of the legacy era (session_table.go, session.go), opened (initialize.go) and perhaps
//     shared by replicas (shared.go). The GET stream of a session (get_stream.go, keep_stream.go) brings what is outside
//     of any call: notifications for the listeners (listen_legacy.go), and questions for a call or else
//     for the client of the session (session_question.go).
//   - The client: it finds out the era (era.go), lists tools (tools.go), and makes an exchange of a call
//     (legacy.go, modern.go), again if the server has not begun it (again.go).
//
// Three rules hold everywhere. A request is sent exactly once, unless an answer proves that the server did
// not begin it (design.md 0.11; again.go is the only place that repeats). A payload is spliced, never
// re-marshalled (0.8). The server's texts about itself, its address and its headers go into logs and the
// Err of an error, never into a message that a client may see.
//
// The package knows nothing of clients, tasks, stores or policy.
package upstream
