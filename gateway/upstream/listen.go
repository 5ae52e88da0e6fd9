package upstream

import (
	"context"
	"encoding/json"

	"taskgate/shim"
)

// Resume goes on with a call from a checkpoint, possibly one of another replica.
// Nothing is sent but the request for the rest of the stream.
func (h *HTTP) Resume(ctx context.Context, r shim.Request, cp json.RawMessage, s shim.Sink) (shim.Reply, error) {
	return shim.Reply{}, shim.ErrNotResumable
}

func (h *HTTP) Notify(ctx context.Context, s shim.Session, n shim.Notification) error { return nil }

func (h *HTTP) Listen(ctx context.Context, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	ready(shim.Filter{})
	<-ctx.Done()
	return context.Cause(ctx)
}
