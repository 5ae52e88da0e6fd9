// Package modern answers requests of 2026-07-28, in which each message says everything that is
// needed (protocol.md 2). [Handler.ServePOST] takes a JSON-RPC message with its headers and its
// principal, at one endpoint. Calls go to the shim, everything else to the upstream, and one answer
// goes out over HTTP.
//
// All requests of an endpoint share its [Handler]. The type request (envelope.go) has the content
// of one request, and its methods serve it; handler.go has the table of them.
package modern
