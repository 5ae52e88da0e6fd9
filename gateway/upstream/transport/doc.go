// Package transport says what a transport towards an MCP server does: it carries messages. A
// [Transport] makes a request and hears what belongs to it until its answer, sends a notification
// or a response, listens to what belongs to no request, and ends a session. There are three:
// Streamable HTTP (package streamable), HTTP+SSE (package sse) and stdio (package stdio). In come
// [Message] values, out go a [Stream] of [Event] values, or an error. The package transporttest has
// the contract in executable form.
package transport
