// Package streamable carries messages to a server over Streamable HTTP (protocol.md 5.1): each
// message is a POST, whose response is the answer as JSON or an event stream that ends with it; a GET
// is the stream of messages outside of any request. In come messages ([transport.Outgoing]), out go
// streams of events, and a [transport.StatusError] for any other response.
//
// [Transport] implements transport.Transport (transport.go). It makes the HTTP requests (request.go),
// reads responses (stream.go) and judges refusals (status.go).
package streamable
