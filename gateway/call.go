package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// callTool answers tools/call: with the upstream's result, or with a task if the
// shim made one (T4), in words to a client that knows of none (design.md 0.10). When
// the client goes away before that, its context ends and with it the upstream call;
// once there is a task, nothing that happens to this request touches it (T42).
func (e *endpoint) callTool(ctx context.Context, q *modernRequest, x *exchange) (json.RawMessage, error) {
	if err := e.checkArguments(ctx, q); err != nil {
		return nil, err
	}
	req, err := e.upstreamRequest(q)
	if err != nil {
		return nil, err
	}
	return e.converse(ctx, q, x, shim.Call{
		Request:  req,
		Handle:   q.tasks && e.convertible(), // T2, T3
		Partials: e.offersPartials() && wantsPartials(q.capabilities),
		After:    e.handleAfter(),
	})
}

// checkArguments compares the arguments with the headers that mirror them. Only
// modern upstreams have such tools (H12). The schema may have changed since it
// was read, and the client may know the newer one: before a request is refused,
// the tools are listed again.
func (e *endpoint) checkArguments(ctx context.Context, q *modernRequest) error {
	if q.server.Era != mcp.Modern {
		return nil
	}
	session := e.upstreamSession(q)
	err := e.checkTool(ctx, q, session)
	if f := (*failure)(nil); errors.As(err, &f) && e.relist.due(time.Now()) {
		e.leg.Forget(session)
		err = e.checkTool(ctx, q, session)
	}
	return err
}

// relistAge is how old a list may be to be taken for the present one. It keeps a
// client that sends wrong headers all day from having the tools listed each time.
const relistAge = time.Second

// relist remembers when the tools were last listed for the sake of a mismatch.
type relist struct {
	mu   sync.Mutex
	last time.Time
}

func (l *relist) due(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last) < relistAge {
		return false
	}
	l.last = now
	return true
}

func (e *endpoint) checkTool(ctx context.Context, q *modernRequest, session shim.Session) error {
	tool, listed, err := e.leg.Tool(ctx, session, q.name)
	switch {
	case err != nil:
		return err
	case !listed: // the upstream knows best what that means
		return nil
	case tool.Invalid != nil: // not offered, so not there (2.4)
		return invalidParams("unknown tool: %s", q.name)
	}
	args, _ := jsonrpc.Get(q.msg.Params, "arguments")
	return checkParamHeaders(q.header, args, tool.Params)
}
