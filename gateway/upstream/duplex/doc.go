// Package duplex answers the HTTP requests of the upstream client as a Streamable HTTP server
// would, out of connections that only carry messages in both directions. In come HTTP
// requests ([Transport.RoundTrip]) and the messages of a [Link]; out go HTTP responses, each
// with the messages that belong to its request. A Link is the pipes of a process (package
// stdio), or the event stream and the POSTs of an older HTTP server (package sse).
//
// A request takes this path. RoundTrip finds the server that it is for (transport.go), or has
// its Link opened (start.go). The server (server.go) keeps a stream for each request in flight,
// and sends the request. One goroutine per server receives what it says, and puts each message
// into the stream that it belongs to (dispatch.go). The body of the response is that stream
// (stream.go); it ends with the answer.
package duplex
