package mcp

import "taskgate/internal/jsonrpc"

// AppendCancelled appends the notification that a request is cancelled. The reason is for people,
// and is left out if it is empty.
func AppendCancelled(dst []byte, request jsonrpc.ID, reason string) []byte {
	params := append([]byte(`{"requestId":`), request.Raw()...)
	if reason != "" {
		params = jsonrpc.AppendString(append(params, `,"reason":`...), reason)
	}
	return jsonrpc.AppendNotification(dst, NotifyCancelled, append(params, '}'))
}
