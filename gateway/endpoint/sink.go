package endpoint

import (
	"context"
	"encoding/json"

	"taskgate/gateway/translate"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Sink brings an upstream's messages before its answer onto the response stream of the request only
// (protocol.md 2.6). A client that ignores the stream misses them.
type Sink struct {
	Notify func(method string, params json.RawMessage) error
	Corks  func(yes bool)          // see shim.Corker; nil if each message goes out at once
	Token  json.RawMessage         // the client's progress token; nil if it wants no progress
	Passes func(level string) bool // whether a log message of this level is wanted

	said json.RawMessage // the params of the last progress that was relayed
}

var (
	_ shim.Sink     = (*Sink)(nil)
	_ shim.Stream   = (*Sink)(nil)
	_ shim.Notifier = (*Sink)(nil)
	_ shim.Corker   = (*Sink)(nil)
)

// Progress relays progress under the client's own token, with values that rise.
func (s *Sink) Progress(p shim.Progress) {
	if s.Token == nil {
		return
	}
	raised := shim.RaiseProgress(p.Raw, s.said)
	if raised == nil {
		return
	}
	s.said = raised
	if params, err := jsonrpc.Set(raised, s.Token, mcp.MetaProgressToken); err == nil {
		_ = s.Notify(mcp.NotifyProgress, translate.Unrelated(params))
	}
}

// Log relays a log message that is wanted.
func (s *Sink) Log(l shim.Log) {
	if s.Passes(l.Level) {
		_ = s.Notify(mcp.NotifyMessage, translate.Unrelated(l.Raw))
	}
}

// Notified relays a notification of an unknown method.
func (s *Sink) Notified(n shim.Notification) {
	_ = s.Notify(n.Method, translate.Unrelated(n.Params))
}

// Cork implements shim.Corker.
func (s *Sink) Cork(yes bool) {
	if s.Corks != nil {
		s.Corks(yes)
	}
}

// RoomToAsk leaves it to Ask.
func (s *Sink) RoomToAsk(int) bool { return true }

// Ask refuses. The shim asks a client that can be asked, in a call that it makes; questions of a
// modern server are relayed as results.
func (s *Sink) Ask(context.Context, ...shim.Question) ([]shim.Answer, error) {
	return nil, shim.ErrNoAsk
}

// Withdraw does nothing: Ask has refused all questions.
func (s *Sink) Withdraw(string) {}

// Checkpoint keeps nothing: only tasks are resumed.
func (s *Sink) Checkpoint(json.RawMessage) (stored func(context.Context) error) {
	return func(context.Context) error { return nil }
}
