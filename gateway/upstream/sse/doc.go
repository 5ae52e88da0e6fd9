// Package sse carries messages to servers of the HTTP+SSE transport of 2024-11-05 (protocol.md 5.2), and
// tells them from those of Streamable HTTP.
//
// A message takes this path. [Transport] (transport.go) decides by its session, and by what is known of
// the server, whether it goes by Streamable HTTP. Otherwise a duplex.Transport takes it, which matches
// messages with requests. conn (conn.go) is one connection of such a server, and a duplex.Link: the event
// stream of a GET, and a POST for each message to the server. connect.go opens it.
package sse
