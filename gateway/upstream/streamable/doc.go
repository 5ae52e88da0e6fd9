// Package streamable carries messages to a server over Streamable HTTP (protocol.md 5.1): each
// message is a POST, whose response is the answer as JSON or an event stream that ends with it; a GET
// is the stream of what belongs to no request. In come messages ([transport.Message]), out go streams
// of events, and a [transport.StatusError] for whatever is no answer.
//
// [Transport] implements transport.Transport (transport.go). It makes the HTTP requests (request.go),
// reads responses (stream.go) and judges those that are no success (status.go).
package streamable
