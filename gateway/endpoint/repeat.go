package endpoint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/sealed"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Repeater names a client that may pick up a call that it gave up.
type Repeater struct {
	Owner        string          // the principal
	Session      string          // of a legacy client; "" for a modern one
	Info         json.RawMessage // clientInfo
	Capabilities json.RawMessage // that it declares
}

// NameRepeater is the name of the client at this endpoint. Different clients differ in it.
func (e *Endpoint) NameRepeater(r Repeater) string {
	self := sealed.Digest(r.Info, r.Capabilities)
	return digestOf(e.Name, r.Owner, r.Session, string(self[:]))
}

// digestOf is the digest of some texts, in order.
func digestOf(texts ...string) string {
	h := sha256.New()
	for _, text := range texts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		h.Write([]byte(text))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// RepeatOf says how a call of a tool with this policy is known as the same one as an earlier call of its client, and when
// the client gives up. s says which headers of the request go to the server. silence returns how long the client has heard
// nothing; nil for a client whose connections say nothing.
func (e *Endpoint) RepeatOf(r Repeater, tool string, policy config.Tool, arguments func() json.RawMessage, s shim.Session, begun time.Time, silence func() time.Duration) shim.Repeat {
	joins := policy.Repeat == config.RepeatJoin
	var afterSession func() string
	if r.Session != "" && r.Owner != "" {
		afterSession = func() string {
			return e.NameRepeater(Repeater{Owner: r.Owner, Info: r.Info, Capabilities: r.Capabilities})
		}
	}
	return shim.Repeat{
		Client: func() string { return e.NameRepeater(r) }, AfterSession: afterSession,
		Name: func() string { return nameOf(r.Info) },
		Call: func() string {
			sum := sealed.Digest(jsonrpc.AppendString(nil, tool), arguments())
			return digestOf(string(sum[:]), s.Mark)
		},
		GaveUp: func(cause error) bool {
			said, explicit := errors.AsType[*shim.CancelledError](cause)
			switch {
			case explicit:
				return IsGivingUp(said.Reason) || joins && said.Reason == ""
			case shim.IsSessionEnd(cause):
				return afterSession != nil
			}
			return joins || silence != nil && IsClientWait(time.Since(begun), silence())
		},
		ReadOnly: func(ctx context.Context) bool {
			one, _, err := e.Upstream.Tool(ctx, s, tool)
			return err != nil || one.Says.ReadOnly // an old answer is worse than new work
		},
	}
}

// WithPickedUp returns a reply that says since when its work has been going on, if it was picked up.
func WithPickedUp(a shim.Answered) shim.Reply {
	reply := a.Reply
	if a.PickedUp.IsZero() || reply.Result == nil {
		return reply
	}
	reply.Result, reply.Plain = jsonrpc.With(reply.Result, jsonrpc.AppendString(nil, a.PickedUp.UTC().Format(time.RFC3339Nano)), "_meta", mcp.MetaPickedUp), false
	return reply
}
