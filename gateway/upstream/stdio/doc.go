// Package stdio carries messages to an MCP server that is a program, over its standard input and
// output (protocol.md 5.3). [Transport] is a transport.Transport.
//
// The package duplex decides which lines belong to which request, and which session has which
// process. This package has the processes: child (child.go) is one with its group, its output and
// its end, and a duplex.Link.
package stdio
