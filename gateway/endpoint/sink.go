package endpoint

import (
	"context"
	"encoding/json"

	"taskgate/gateway/translate"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Sink brings what an upstream says before it answers onto the response stream of the request,
// and nowhere else (protocol.md 2.6). A client that does not take it misses it.
type Sink struct {
	Notify func(method string, params json.RawMessage) error
	Token  json.RawMessage         // the client's progress token; nil if it wants no progress
	Passes func(level string) bool // whether a log message of this level is wanted

	said *json.RawMessage // the params of the last progress that was relayed
}

// NewSink returns the Sink of a request.
func NewSink(notify func(method string, params json.RawMessage) error, token json.RawMessage, passes func(level string) bool) Sink {
	return Sink{Notify: notify, Token: token, Passes: passes, said: new(json.RawMessage)}
}

var (
	_ shim.Sink     = Sink{}
	_ shim.Stream   = Sink{}
	_ shim.Notifier = Sink{}
)

// Progress relays progress under the client's own token. What does not rise is left out:
// a server that is called again with answers begins from the start, and others are wrong.
func (s Sink) Progress(p shim.Progress) {
	if s.Token == nil || !shim.Rises(p.Raw, *s.said) {
		return
	}
	*s.said = p.Raw
	if params, err := jsonrpc.Set(p.Raw, s.Token, mcp.MetaProgressToken); err == nil {
		_ = s.Notify(mcp.NotifyProgress, translate.Unrelated(params))
	}
}

// Log relays a log message that is wanted.
func (s Sink) Log(l shim.Log) {
	if s.Passes(l.Level) {
		_ = s.Notify(mcp.NotifyMessage, translate.Unrelated(l.Raw))
	}
}

// Notified relays what the gateway does not know.
func (s Sink) Notified(n shim.Notification) {
	_ = s.Notify(n.Method, translate.Unrelated(n.Params))
}

// Ask refuses. A client that can be asked during a call is asked by the shim, which makes the
// call then; the questions of a modern server are relayed as results.
func (s Sink) Ask(context.Context, ...shim.Question) ([]shim.Answer, error) {
	return nil, shim.ErrNoAsk
}

// Withdraw has nothing to do: nobody is asked.
func (s Sink) Withdraw(string) {}

// Checkpoint keeps nothing: a call that is no task is not resumed.
func (s Sink) Checkpoint(json.RawMessage) (stored func(context.Context) error) {
	return func(context.Context) error { return nil }
}
