// Package modern answers requests of 2026-07-28, in which each message says all that there is
// to know (protocol.md 2). In comes a JSON-RPC message with its headers and its principal, at
// one endpoint ([Handler.ServePOST]). Out go calls to the shim, everything else to the
// upstream, and one answer over HTTP.
//
// A [Handler] is shared by all requests of its endpoint. What one request says and needs is a
// request (envelope.go), and its methods serve it; handler.go has the table of them.
package modern
