package modern

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// ackWait is how long the upstream may take to say what it honours. A client waits for the
// acknowledgement before it does anything else (Appendix C.4).
const ackWait = 10 * time.Second

// subscription is one subscriptions/listen stream (protocol.md 2.8).
type subscription struct {
	q      *request
	filter shim.Filter     // what the client asked for, then what of it is honoured
	tasks  []shim.ID       // likewise
	named  map[string]bool // the task ids that the client wrote
	acked  chan struct{}
	rights bool // a reload may show the client other tools, which it wants to hear, whatever the upstream honours

	partials bool              // partial results of the tasks are wanted, and shown
	from     map[shim.ID]int64 // from this seq on
}

// answerListen answers subscriptions/listen: an acknowledgement, then notifications until the client
// goes, the upstream ends the stream, or the gateway closes. In the last two cases a final result tells
// the client that the end was intended.
func (q *request) answerListen(ctx context.Context) (jsonrpc.Spliced, error) {
	s := &subscription{q: q, acked: make(chan struct{})}
	if err := s.readParams(q.h.Config.MaxTasksPerOwner, q.h.Convertible()); err != nil {
		return nil, err
	}
	ctx, done, err := q.h.Streams.Open(ctx, q.principal.Share())
	defer done()
	if err != nil {
		return nil, err
	}
	if s.filter, err = s.offeredFilter(ctx, s.filter); err != nil {
		return nil, err
	}
	if err := s.agreeTasks(ctx); err != nil {
		return nil, err
	}
	if err := s.streamUntilEnd(ctx); err != nil {
		return nil, err
	}
	return jsonrpc.Spliced{s.finalResult(q.h.Identity())}, nil
}

// streamUntilEnd sends what comes between acknowledgement and final result. If only tasks are listened
// to, the upstream is left alone, and the stream ends with the last task, or at once if there are none.
func (s *subscription) streamUntilEnd(ctx context.Context) error {
	if isEmpty(s.filter) {
		s.sendAcknowledgement(s.filter)
		if len(s.tasks) == 0 {
			return nil
		}
		return unlessOver(ctx, s.followTasks(ctx))
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	var failed error
	tasks.Go(func() {
		// followUpstream wakes it when the server agrees, within ackWait; tasks are read each 30 s by
		// themselves.
		select {
		case <-s.acked:
			if failed = unlessOver(ctx, s.followTasks(ctx)); failed != nil {
				cancel()
			}
		case <-ctx.Done():
		}
	})
	tasks.Go(func() { s.followRights(ctx) })
	err := s.followUpstream(ctx)
	cancel()
	tasks.Wait()
	if failed != nil { // a client must not take what it has for everything
		return failed
	}
	return err
}

// followRights tells the client each time that a reload shows it other tools.
func (s *subscription) followRights(ctx context.Context) {
	news := make(chan struct{}, 1)
	defer endpoint.WatchRights(ctx, func() {
		select {
		case news <- struct{}{}:
		default: // it has yet to hear of the last one
		}
	})()
	select { // as for the tasks
	case <-s.acked:
	case <-ctx.Done():
	}
	for {
		select {
		case <-news:
			s.relayNotification(shim.Notification{Method: mcp.NotifyToolsListChanged})
		case <-ctx.Done():
			return
		}
	}
}

// unlessOver returns err, or nil if the stream is over anyway.
func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// readParams checks the params. The acknowledgement leaves out unknown kinds, as it does kinds that a
// server lacks.
func (s *subscription) readParams(mostTasks int, partials bool) error {
	want, ok := jsonrpc.Get(s.q.msg.Params, "notifications")
	if !ok || !jsonrpc.IsObject(want) {
		return wire.InvalidParams("params.notifications must be an object")
	}
	if err := s.readTaskIDs(want, mostTasks); err != nil {
		return err
	}
	if err := s.readPartials(partials); err != nil {
		return err
	}
	if !s.q.x.Streams() {
		return wire.Refused(http.StatusNotAcceptable, "Accept must list "+mcp.TypeSSE)
	}
	return s.readKinds(want)
}

func (s *subscription) readKinds(want json.RawMessage) error {
	for name, into := range map[string]*bool{
		"toolsListChanged":     &s.filter.ToolsListChanged,
		"promptsListChanged":   &s.filter.PromptsListChanged,
		"resourcesListChanged": &s.filter.ResourcesListChanged,
	} {
		if v, ok := jsonrpc.Get(want, name); ok {
			if *into = string(v) == "true"; !*into && string(v) != "false" {
				return wire.InvalidParams("params.notifications.%s must be a boolean", name)
			}
		}
	}
	list, given := jsonrpc.Get(want, "resourceSubscriptions")
	uris, ok := jsonrpc.Strings(list)
	if given && !ok {
		return wire.InvalidParams("params.notifications.resourceSubscriptions must be an array of strings")
	}
	for _, uri := range uris {
		if err := endpoint.CheckSubscription(uri, len(s.filter.Resources)); err != nil {
			return err
		}
		s.filter.Resources = append(s.filter.Resources, uri)
	}
	return nil
}

// offeredFilter is what the upstream's capabilities leave of a filter.
func (s *subscription) offeredFilter(ctx context.Context, f shim.Filter) (shim.Filter, error) {
	if isEmpty(f) {
		return f, nil
	}
	server, err := s.q.describeUpstream(ctx)
	if err != nil {
		return f, err
	}
	s.q.server = s.q.h.Offered(server)
	s.rights = f.ToolsListChanged && s.q.h.Config.Hides()
	has := func(path ...string) bool {
		v, _ := jsonrpc.Get(s.q.server.Capabilities, path...)
		return string(v) == "true"
	}
	f.ToolsListChanged = f.ToolsListChanged && has("tools", "listChanged")
	f.PromptsListChanged = f.PromptsListChanged && has("prompts", "listChanged")
	f.ResourcesListChanged = f.ResourcesListChanged && has("resources", "listChanged")
	if !has("resources", "subscribe") {
		f.Resources = nil
	}
	return f, nil
}

// followUpstream relays what the upstream sends, and returns when that is over. It fails only before the
// acknowledgement.
func (s *subscription) followUpstream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := &shim.UpstreamError{Kind: shim.KindTimeout, Message: "the server did not accept the subscription in time"}
	timer := time.AfterFunc(ackWait, func() { cancel(late) })
	defer timer.Stop()
	err := s.q.h.Upstream.Listen(ctx, s.q.upstreamSession(ctx), s.filter, func(f shim.Filter) {
		timer.Stop()
		s.sendAcknowledgement(f)
	}, s.relayNotification)
	select {
	case <-s.acked:
		return nil
	default:
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err == nil { // the upstream sends nothing, so nothing of its is honoured
		timer.Stop()
		s.sendAcknowledgement(shim.Filter{})
		if s.rights {
			<-ctx.Done() // the client goes, or the gateway closes
		}
	}
	return err
}

// sendAcknowledgement sends the first message of the stream: what is honoured.
func (s *subscription) sendAcknowledgement(f shim.Filter) {
	f.ToolsListChanged = f.ToolsListChanged || s.rights
	s.filter = f
	honoured := upstream.SpellFilter(f)
	if len(s.tasks) > 0 {
		honoured = jsonrpc.With(honoured, jsonrpc.AppendStrings(nil, s.tasks), "taskIds")
	}
	params := append([]byte(`{"notifications":`), honoured...)
	_ = s.sendMarked(mcp.NotifyAcknowledged, append(params, '}'))
	close(s.acked)
}

// relayNotification passes on one notification of the upstream if the client asked for it.
func (s *subscription) relayNotification(n shim.Notification) {
	if upstream.Wants(s.filter, n) {
		_ = s.sendMarked(n.Method, translate.Unrelated(n.Params))
	}
}

// sendMarked sends a notification with the id of the listen request, verbatim. It fails if the client has
// gone.
func (s *subscription) sendMarked(method string, params json.RawMessage) error {
	if len(params) == 0 {
		params = json.RawMessage(`{}`)
	}
	return s.q.x.Notify(method, jsonrpc.With(params, json.RawMessage(s.q.msg.ID.Raw()), "_meta", mcp.MetaSubscriptionID))
}

// finalResult is the result that ends the stream gracefully.
func (s *subscription) finalResult(identity json.RawMessage) json.RawMessage {
	result := jsonrpc.With(json.RawMessage(`{"resultType":"complete"}`), json.RawMessage(s.q.msg.ID.Raw()), "_meta", mcp.MetaSubscriptionID)
	return jsonrpc.With(result, identity, "_meta", mcp.MetaServerInfo)
}

func isEmpty(f shim.Filter) bool {
	return !f.ToolsListChanged && !f.PromptsListChanged && !f.ResourcesListChanged && len(f.Resources) == 0
}
