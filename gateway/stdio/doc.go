// Package stdio serves one client that speaks over standard input and output (protocol.md 5.3). It
// takes the lines that the client writes, one message each, and writes the lines that the client
// reads: answers, notifications and questions.
//
// The gateway itself speaks HTTP. So a [Conn] makes an HTTP request of each message and hands it to
// the gateway's handler, within this process (exchange.go). The handler's output, JSON or an event
// stream, becomes lines (response.go, lines.go). It is the reverse of package
// gateway/upstream/stdio. It keeps what only HTTP has: the id of the session, its GET stream
// (session.go), and which request a cancellation is about.
package stdio
