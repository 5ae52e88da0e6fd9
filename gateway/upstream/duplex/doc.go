// Package duplex is a transport out of connections that only carry messages in both directions. In come
// messages to the server ([Transport] implements transport.Transport) and the messages of a [Link]; out go streams,
// each of what belongs to its request. A Link is the pipes of a process (package stdio), or the
// event stream and the POSTs of an older HTTP server (package sse).
//
// A request takes this path. Transport.Request finds the server that it is for (transport.go), or has
// its Link opened (start.go). The server (server.go) keeps a stream for each request in flight,
// and sends the request. One goroutine per server receives what it says, and puts each message
// into the stream that it belongs to (dispatch.go, stream.go), which ends with the answer.
package duplex
