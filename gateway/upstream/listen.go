package upstream

import (
	"context"
	"encoding/json"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Notify sends a notification in a legacy session that exists. Where there is
// none the server has nobody to hear it from, and a modern server takes no
// notifications of clients: then nothing is sent, and that is no error. notifications/initialized
// completes the handshake of the session.
func (h *HTTP) Notify(ctx context.Context, s shim.Session, n shim.Notification) error {
	ses := h.sessions.find(ctx, s)
	if ses == nil {
		return nil
	}
	defer ses.release()
	if roots, _ := jsonrpc.Get(ses.from.Capabilities, "roots"); n.Method == mcp.NotifyInitialized && jsonrpc.IsObject(roots) {
		// Servers ask for the roots at once.
		_, opened := ses.get.want(ctx)
		defer ses.get.unwant(linger)
		ses.t.support.await(ctx, opened)
	}
	l, err := ses.open(ctx)
	if err != nil {
		return unsent(err)
	}
	if n.Method == mcp.NotifyInitialized {
		return nil
	}
	err = h.wire.tell(ctx, l.target(), jsonrpc.AppendNotification(nil, n.Method, n.Params))
	if err == nil || ctx.Err() != nil {
		return ended(ctx)
	}
	se, ok := err.(*statusError)
	if !ok {
		return netError(err, true)
	}
	if se.lost() {
		ses.lose(l)
	}
	return se.upstream()
}

// Listen hands over notifications that belong to no call, until ctx ends, and
// returns why it did. ready is called once, before the first notification, with
// what the server agreed to. A stream that drops afterwards is opened again; if
// something may have been missed meanwhile, the lists that were listened for are
// reported as changed. An error before ready is a *shim.UpstreamError.
func (h *HTTP) Listen(ctx context.Context, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	var last error
	for range 2 { // once more if the server turns out to be of the other era
		v, era, err := h.settle(ctx, s)
		if err != nil {
			return public(err)
		}
		if era == mcp.Modern {
			return h.listenModern(ctx, v, s, f, ready, on)
		}
		ses := h.sessions.acquire(s)
		if h.wire.cfg.Transport == nil { // else a request begins the server
			_, err = ses.connect(ctx)
		}
		if err == nil {
			defer ses.release()
			return ses.listen(ctx, f, ready, on)
		}
		ses.release()
		if !h.eras.doubtHandshake(v, err) {
			return public(err)
		}
		last = handshakeError(err)
	}
	return public(last)
}

// nothing reports whether a filter asks for nothing.
func nothing(f shim.Filter) bool {
	return !f.ToolsListChanged && !f.PromptsListChanged && !f.ResourcesListChanged && !f.Log && len(f.Resources) == 0
}

// missed are the notifications that tell a listener to look again after a gap.
func missed(f shim.Filter) []shim.Notification {
	var out []shim.Notification
	add := func(ok bool, method string) {
		if ok {
			out = append(out, shim.Notification{Method: method})
		}
	}
	add(f.ToolsListChanged, mcp.NotifyToolsListChanged)
	add(f.PromptsListChanged, mcp.NotifyPromptsListChanged)
	add(f.ResourcesListChanged, mcp.NotifyResourcesListChanged)
	for _, uri := range f.Resources {
		params := append(jsonrpc.AppendString([]byte(`{"uri":`), uri), '}')
		out = append(out, shim.Notification{Method: mcp.NotifyResourceUpdated, Params: json.RawMessage(params)})
	}
	return out
}
