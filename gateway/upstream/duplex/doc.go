// Package duplex makes a transport of connections that only carry messages in both directions. In come
// messages to the server ([Transport] implements transport.Transport) and the messages of a [Link]; out go
// streams, one for the messages of each request. A Link is the pipes of a process (package stdio), or the
// event stream and the POSTs of an older HTTP server (package sse).
//
// A request takes this path. Transport.Request finds its server (transport.go), or has the server's Link
// opened (start.go). The server (server.go) keeps a stream for each request in flight, and sends the request.
// A goroutine per server receives its messages and puts each into the stream that it belongs to (dispatch.go,
// stream.go). The stream ends with the answer.
package duplex
