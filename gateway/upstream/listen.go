package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"taskgate/gateway/upstream/listed"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// Notify sends a notification in a legacy session that exists. It does nothing if the session is
// missing, or the server is a modern one, which takes no notifications.
// notifications/initialized completes the handshake of the session.
func (h *ServerClient) Notify(ctx context.Context, s shim.Session, n shim.Notification) error {
	ses := h.sessions.findSession(ctx, s)
	if ses == nil {
		return nil
	}
	defer ses.releaseSession()
	if n.Method == mcp.NotifyInitialized {
		ses.questions.roots.greeted.Store(true)
	}
	l, err := ses.openGeneration(ctx)
	if err != nil {
		return markUnsent(err)
	}
	if n.Method == mcp.NotifyInitialized {
		return nil
	}
	err = h.wire.tellServer(ctx, l.target, jsonrpc.AppendNotification(nil, n.Method, n.Params))
	if err == nil || ctx.Err() != nil {
		return causeOf(ctx)
	}
	se, ok := err.(*transport.StatusError)
	if !ok {
		return netError(err, true)
	}
	if se.IsSessionLost() {
		ses.loseGeneration(l)
	}
	return se.UpstreamError()
}

// Listen hands over notifications that are outside of any call until ctx ends, and returns the
// cause. ready is called once, before the first notification, with what the server agreed to. A
// stream that drops afterwards is opened again. If notifications may have been lost meanwhile,
// the resources that were listened for are reported as changed, and the lists that differ. An error before ready is a
// *shim.UpstreamError.
func (h *ServerClient) Listen(ctx context.Context, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	v, era, err := h.settleEra(ctx, s)
	if err != nil {
		return publicError(err)
	}
	if era == mcp.Modern {
		return h.listenModern(ctx, v, s, f, ready, on)
	}
	ses := h.sessions.acquireSession(s)
	defer ses.releaseSession()
	if h.wire.cfg.Transport == nil { // over a Transport only a request starts the server
		if _, err := ses.connectGeneration(ctx); err != nil {
			if h.memory.doubtHandshake(v, err) { // the next Listen asks the server for its era first
				err = handshakeError(err)
			}
			return publicError(err)
		}
	}
	return ses.listenOpen(ctx, f, ready, on)
}

// subscription is one Listen at a modern server, through all its streams
// (protocol.md 2.8).
type subscription struct {
	wire   *wire
	memory *memory
	ready  func(shim.Filter)
	on     func(shim.Notification)
	all    bool // on takes every notification: it is for one client's session
	told   bool // ready has been called
	agreed shim.Filter
	tries  int // streams in a row that ended soon and brought nothing

	marks   *listed.Marks
	missed  map[string]listed.Mark                                   // the marks at the break before; nil if there was none
	compare func(before map[string]listed.Mark) (shim.Filter, error) // finds what of agreed has changed
}

func (h *ServerClient) listenModern(ctx context.Context, v *verdict, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	sub := &subscription{wire: h.wire, memory: h.memory, all: s.Shared, ready: ready, on: on, marks: h.memory.marksOf(modernKey(ctx, s))}
	ask := func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
		return pageOf(h.wire.modernExchange(shim.Request{Method: method, Params: params, Session: s}, nil, v.version).runRequest(ctx))
	}
	sub.compare = func(before map[string]listed.Mark) (shim.Filter, error) {
		ctx, cancel := context.WithTimeout(ctx, neededPatience)
		defer cancel()
		return sub.marks.FindChanges(ctx, before, sub.agreed, true, ask)
	}
	params := listenParams(f)
	for {
		begun := time.Now()
		err := sub.holdOnce(ctx, v.version, s, params)
		if sub.told && sub.missed == nil {
			sub.missed = sub.marks.Copy()
		}
		if cause := causeOf(ctx); cause != nil {
			return cause
		}
		if !sub.told {
			if !isUnsupported(err) {
				return publicError(err)
			}
			sub.tellAgreed(shim.Filter{})
		}
		if asksNothing(sub.agreed) {
			<-ctx.Done() // the server has nothing to send
			return context.Cause(ctx)
		}
		if time.Since(begun) >= steady {
			sub.tries = 0
		}
		sub.tries++
		if err := work.Pause(ctx, backoffOf(sub.tries)); err != nil {
			return err
		}
	}
}

// holdOnce holds one stream until it ends.
func (sub *subscription) holdOnce(ctx context.Context, version string, s shim.Session, params json.RawMessage) error {
	x := sub.wire.modernExchange(shim.Request{Method: mcp.MethodListen, Params: params, Session: s}, nil, version)
	x.uncancelled, x.listens, x.outside = true, true, sub
	m, err := x.runRequest(ctx)
	if err == nil && m.Error != nil {
		err = m.Error
	}
	return err
}

// isUnsupported reports whether a server refuses subscriptions.
func isUnsupported(err error) bool {
	rpc := rpcOf(err)
	return rpc != nil && (rpc.Code == mcp.CodeMethodNotFound || rpc.Code == mcp.CodeInvalidParams)
}

func (sub *subscription) takeNotification(n shim.Notification) {
	if n.Method == mcp.NotifyAcknowledged {
		granted, _ := jsonrpc.Get(n.Params, "notifications")
		sub.tellAgreed(readFilter(granted))
		return
	}
	sub.tries = 0
	sub.memory.takeNotification(n)
	n.Params = reading.WithoutMeta(bytes.Clone(n.Params), mcp.MetaSubscriptionID) // the id of our own request
	if sub.told && (sub.all || Wants(sub.agreed, n)) {
		sub.on(n)
	}
}

// tellAgreed calls ready with what was agreed, the first time. Later streams begin after a gap: then on is told to look
// again at the resources, and at the lists that have changed. The stream waits for that comparison, for neededPatience.
func (sub *subscription) tellAgreed(f shim.Filter) {
	if !sub.told {
		sub.told, sub.agreed = true, f
		sub.ready(f)
		return
	}
	changed, err := sub.compare(sub.missed)
	if err != nil {
		changed = sub.agreed
	}
	sub.missed = nil
	if changed.ToolsListChanged || !sub.agreed.ToolsListChanged {
		sub.memory.takeNotification(shim.Notification{Method: mcp.NotifyToolsListChanged})
	}
	for _, n := range missedNotices(changed) {
		sub.on(n)
	}
}

// wireFilter is a filter as the protocol spells it.
type wireFilter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
}

// SpellFilter is a filter of lists and resources in JSON.
func SpellFilter(f shim.Filter) json.RawMessage {
	b, _ := json.Marshal(wireFilter{f.ToolsListChanged, f.PromptsListChanged, f.ResourcesListChanged, f.Resources}) // texts can always be written
	return b
}

func listenParams(f shim.Filter) json.RawMessage {
	return append(append([]byte(`{"notifications":`), SpellFilter(f)...), '}')
}

func readFilter(granted json.RawMessage) shim.Filter {
	var w wireFilter
	_ = json.Unmarshal(granted, &w) // an unreadable filter grants nothing
	return shim.Filter{ToolsListChanged: w.Tools, PromptsListChanged: w.Prompts, ResourcesListChanged: w.Resources, Resources: w.URIs}
}
