package gateway

import (
	"context"
	"strings"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// heed takes a notification of the client. It has no answer, so what goes wrong
// with it is only logged.
func (e *endpoint) heed(ctx context.Context, s *session, msg jsonrpc.Message) {
	var err error
	switch msg.Method {
	case mcp.NotifyCancelled:
		// The id is that of the client's own request; another one names nothing.
		if raw, ok := jsonrpc.Get(msg.Params, "requestId"); ok {
			if id, perr := jsonrpc.ParseID(raw); perr == nil {
				err = s.abort(ctx, id)
			}
		}
	case mcp.NotifyInitialized:
		// The leg has said the same upstream when it opened the session there.
		err = s.update(ctx, func(st sessionState) sessionState {
			st.Initialized = true
			return st
		})
	default:
		err = e.forward(ctx, s, msg)
	}
	if err != nil {
		e.log.DebugContext(ctx, "notification of a client is lost", "method", msg.Method, "err", err)
	}
}

// forward passes a notification on to a legacy upstream: roots/list_changed, and
// what nobody here knows. A modern one has no place for any, over HTTP at least
// (protocol.md 7.5). Those of tasks would be about tasks of the gateway's.
func (e *endpoint) forward(ctx context.Context, s *session, msg jsonrpc.Message) error {
	if strings.HasPrefix(msg.Method, mcp.NotifyTask+"/") {
		return nil
	}
	server, err := e.leg.Describe(ctx, s.upstream())
	if err != nil || server.Era == mcp.Modern {
		return err
	}
	return e.leg.Notify(ctx, s.upstream(), shim.Notification{Method: msg.Method, Params: msg.Params})
}
