// Package sse reaches MCP servers of the HTTP+SSE transport of 2024-11-05 (protocol.md 5.2), and
// tells them from those of Streamable HTTP. In come the HTTP requests of the upstream client.
// Out come responses as a Streamable HTTP server would give them: those of the server itself
// if it is one, and else made of the messages on its event stream.
//
// A request takes this path. [Transport.RoundTrip] (transport.go) decides by its session, and
// by what is known of the server, whether it goes to the server as it is. If not, it goes
// to a duplex.Transport, which knows which message belongs to which response. conn (conn.go)
// is one connection of such a server, and a duplex.Link: the event stream of a GET, and a POST
// for each message to the server. connect.go opens it.
package sse
