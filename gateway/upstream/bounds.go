package upstream

import (
	"slices"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// This file bounds what a legacy server may ask during one call (shim.QuestionLimits): a
// question too many is answered with an error at once, and the call goes on.

// tooMuch says why a call may not ask this as well; "" if it may.
func (x *exchange) tooMuch(m jsonrpc.Message) string {
	x.mu.Lock()
	asked, open := x.state.Asked, checkpoint{Pending: x.state.Pending}
	x.mu.Unlock()
	if x.aside != nil {
		open.open(x.aside.queued())
	}
	var bytes int64
	for _, p := range open.Pending {
		bytes += int64(len(p.Params))
	}
	return x.limits.Refuse(asked, len(open.Pending), bytes, shim.Question{Params: m.Params})
}

// queued are the questions that are asked next; not all are in the checkpoint yet.
func (a *asides) queued() []pending {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.waiting)
}

// overLimit is what the server is told of a question too many.
func overLimit(why string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: mcp.CodeInternal, Message: why}
}

// maxAside bounds how many questions of a session wait that belong to no call: they count
// towards none.
const maxAside = 64

// maxBacklog bounds how many events are held while a question waits; the rest stays with
// the server.
const maxBacklog = 256

// sizeOf is what an event takes of what may be held.
func sizeOf(it item) (bytes int64) {
	for _, m := range it.msgs {
		bytes += int64(len(m.Raw))
	}
	return bytes
}
