// Package stdio reaches an MCP server that is a program which speaks over its standard input
// and output (protocol.md 5.3). In come the HTTP requests of the upstream client, to which
// [Transport] is an upstream.Transport. Out come responses as a Streamable HTTP server would
// give them, made of the lines that the processes of the server write.
//
// A request takes this path. [Transport.RoundTrip] finds the server that it is for
// (transport.go), or starts one (start.go). The server (server.go) keeps a [stream] for each
// request in flight, and writes the request as one line. One goroutine per server reads what
// it says, and puts each message into the stream that it belongs to (dispatch.go). The body
// of the response is that stream (stream.go); it ends with the answer.
//
// A server is behind an interface, duplex, that sends and receives whole messages. child
// (child.go) is the only one: a process with its group, its output and its end.
package stdio
