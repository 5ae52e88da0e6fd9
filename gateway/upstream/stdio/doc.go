// Package stdio reaches an MCP server that is a program which speaks over its standard input
// and output (protocol.md 5.3). In come the HTTP requests of the upstream client, to which
// [Transport] is an upstream.Transport. Out come responses as a Streamable HTTP server would
// give them, made of the lines that the processes of the server write.
//
// Which of these lines belong to which response, and which session has which process, is the
// business of the package duplex. This one has the processes: child (child.go) is one with its
// group, its output and its end, and a duplex.Link.
package stdio
