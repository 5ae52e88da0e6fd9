package upstream

import (
	"context"
	"encoding/json"
	"errors"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// subscription is one Listen at a modern server, through all its streams
// (protocol.md 2.8).
type subscription struct {
	h      *HTTP
	ready  func(shim.Filter)
	on     func(shim.Notification)
	told   bool // ready has been called
	agreed shim.Filter
	tries  int // streams in a row that were not acknowledged
}

func (h *HTTP) listenModern(ctx context.Context, v *verdict, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	sub := &subscription{h: h, ready: ready, on: on}
	params := listenParams(f)
	for {
		err := sub.once(ctx, v.version, s, params)
		if cause := ended(ctx); cause != nil {
			return cause
		}
		if !sub.told {
			if !unsupported(err) {
				return public(err)
			}
			sub.acknowledged(shim.Filter{})
		}
		if nothing(sub.agreed) {
			<-ctx.Done() // nothing will ever come
			return context.Cause(ctx)
		}
		sub.tries++
		if err := pause(ctx, backoff(sub.tries)); err != nil {
			return err
		}
	}
}

// once holds one stream until it ends.
func (sub *subscription) once(ctx context.Context, version string, s shim.Session, params json.RawMessage) error {
	x := sub.h.modernExchange(shim.Request{Method: mcp.MethodListen, Params: params, Session: s}, discard{}, version)
	x.handshake, x.standing, x.hear = true, true, sub.hear
	m, err := x.run(ctx)
	if err == nil && m.Error != nil {
		err = m.Error
	}
	return err
}

// unsupported reports whether a server refuses to be listened to.
func unsupported(err error) bool {
	rpc, ok := errors.AsType[*jsonrpc.Error](err)
	if se, is := err.(*statusError); is {
		rpc, ok = se.rpc, se.rpc != nil
	}
	return ok && (rpc.Code == mcp.CodeMethodNotFound || rpc.Code == mcp.CodeInvalidParams)
}

// hear takes one notification of the stream.
func (sub *subscription) hear(m jsonrpc.Message) {
	if m.Method == mcp.NotifyAcknowledged {
		sub.tries = 0
		granted, _ := jsonrpc.Get(m.Params, "notifications")
		sub.acknowledged(readFilter(granted))
		return
	}
	n := shim.Notification{Method: m.Method, Params: withoutSubscription(raw(m.Params))}
	if n.Method == mcp.NotifyToolsListChanged {
		sub.h.tools.changed(nil)
	}
	if sub.told && wants(sub.agreed, n) {
		sub.on(n)
	}
}

// acknowledged tells what was agreed, the first time; later streams begin after
// a gap.
func (sub *subscription) acknowledged(f shim.Filter) {
	if !sub.told {
		sub.told, sub.agreed = true, f
		sub.ready(f)
		return
	}
	sub.h.tools.changed(nil)
	for _, n := range missed(sub.agreed) {
		sub.on(n)
	}
}

// withoutSubscription takes out the id of our own listen request.
func withoutSubscription(params json.RawMessage) json.RawMessage {
	if _, ok := jsonrpc.Get(params, "_meta", mcp.MetaSubscriptionID); !ok {
		return params
	}
	out, err := jsonrpc.Delete(params, "_meta", mcp.MetaSubscriptionID)
	if err != nil {
		return params
	}
	meta, _ := jsonrpc.Get(out, "_meta")
	for range jsonrpc.Members(meta) {
		return out // there is more in it
	}
	if bare, err := jsonrpc.Delete(out, "_meta"); err == nil {
		return bare
	}
	return out
}

// wireFilter is a filter as the protocol spells it.
type wireFilter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
}

func listenParams(f shim.Filter) json.RawMessage {
	b, _ := json.Marshal(struct {
		Notifications wireFilter `json:"notifications"`
	}{wireFilter{f.ToolsListChanged, f.PromptsListChanged, f.ResourcesListChanged, f.Resources}})
	return b
}

func readFilter(granted json.RawMessage) shim.Filter {
	var w wireFilter
	_ = json.Unmarshal(granted, &w) // what cannot be read was not granted
	return shim.Filter{ToolsListChanged: w.Tools, PromptsListChanged: w.Prompts, ResourcesListChanged: w.Resources, Resources: w.URIs}
}
