package wire

import (
	"context"

	"taskgate/shim"
)

// stdioKey is the key of the mark in a context; its value is the function begun.
type stdioKey struct{}

// OverStdio marks a request of a client over stdio. Such a request lacks the headers that repeat
// its message (protocol.md 2.4). begun is called when a request of a session is in flight, so that
// a later cancellation finds it.
func OverStdio(ctx context.Context, begun func()) context.Context {
	return context.WithValue(ctx, stdioKey{}, begun)
}

// IsStdio reports whether a request is of a client over stdio.
func IsStdio(ctx context.Context) bool {
	_, ok := ctx.Value(stdioKey{}).(func())
	return ok
}

// Begun says that a request of a session is in flight. It ignores requests over HTTP.
func Begun(ctx context.Context) {
	if begun, ok := ctx.Value(stdioKey{}).(func()); ok {
		begun()
	}
}

// Cancelled is the cause with which the context of a request over stdio ends that its client has cancelled.
func Cancelled(reason string) error { return &shim.CancelledError{Reason: reason} }
