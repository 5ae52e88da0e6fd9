// Package transport defines a transport towards an MCP server, which carries messages. A
// [Transport] sends a request and returns its messages up to the answer, sends a notification or a
// response, listens to the messages outside of any request, and ends a session. There are three:
// Streamable HTTP (package streamable), HTTP+SSE (package sse) and stdio (package stdio). In come
// [Outgoing] values, out go a [Stream] of [Event] values, or an error. The package transporttest has
// the contract in executable form.
package transport
