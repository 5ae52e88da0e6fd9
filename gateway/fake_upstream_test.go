package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
	"taskgate/shim"
)

// fakeUpstream is an upstream that follows a script and remembers what it was sent.
type fakeUpstream struct {
	Era          mcp.Era `json:"-"`
	Speaks       string  // the era in words
	Version      string
	Capabilities json.RawMessage
	Info         json.RawMessage
	Instructions string
	Raw          json.RawMessage
	// Replies are found by "method name", then "method".
	Replies map[string]fakeReply
	// Tools is what Tool looks in, Fresh what a second listing finds.
	Tools  []json.RawMessage
	Fresh  []json.RawMessage
	Stream fakeListen // on Listen
	// Down makes Describe fail.
	Down bool
	// Slow says that most calls outlast their grace, Roots that the server asks clients that have roots for them.
	Slow, Roots bool
	// Quiet keeps it from remembering what it was sent.
	Quiet bool

	mu  sync.Mutex
	got []string
}

// fakeReply is what happens on one request, in the order of the fields.
type fakeReply struct {
	Wait     string            // silence before anything
	Progress []json.RawMessage // params of notifications/progress
	Logs     []json.RawMessage // params of notifications/message
	Ask      bool              // ask the client something, and fail if that cannot be
	Block    bool              // until the caller goes away
	Fail     *shim.UpstreamError
	Error    *shim.RPCError
	Result   json.RawMessage
}

// fakeListen is what happens on Listen.
type fakeListen struct {
	Honour *shim.Filter // nil: what was asked for
	Send   []shim.Notification
	Fail   *shim.UpstreamError // before ready
	Mute   bool                // ready is never called
	End    bool                // return after sending
}

var _ upstream.Client = (*fakeUpstream)(nil)

func (l *fakeUpstream) note(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.Quiet {
		l.got = append(l.got, fmt.Sprintf(format, a...))
	}
}

// sent returns what was noted since the last call.
func (l *fakeUpstream) sent() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := strings.Join(l.got, "")
	l.got = nil
	return s
}

func (l *fakeUpstream) Call(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
	l.note("%s %s%s\n", r.Method, r.Params, wishes(r))
	reply, ok := l.Replies[r.Method+" "+r.Name]
	if !ok {
		reply, ok = l.Replies[r.Method]
	}
	defer func() {
		if ctx.Err() != nil {
			l.note("gave up %s\n", r.Method)
		}
	}()
	if !ok && mcp.Foreign(r.Method) {
		return shim.Reply{Error: &shim.RPCError{Code: mcp.CodeMethodNotFound, Message: "method not found: " + r.Method}}, nil
	}
	if !ok {
		return shim.Reply{Error: &shim.RPCError{Code: -32602, Message: "no script for " + r.Method}}, nil
	}
	return reply.play(ctx, s)
}

// wishes is what a request says besides its params.
func wishes(r shim.Request) string {
	s := ""
	if r.Name != "" {
		s += " name=" + r.Name
	}
	if r.Progress {
		s += " progress"
	}
	if r.LogLevel != "" {
		s += " log=" + r.LogLevel
	}
	if r.Relay {
		s += " relay"
	}
	if r.Session.Capabilities != nil {
		s += " capabilities=" + string(r.Session.Capabilities)
	}
	if r.Session.Key != "" {
		s += " session=" + r.Session.Key
	}
	return s
}

func (f fakeReply) play(ctx context.Context, s shim.Sink) (shim.Reply, error) {
	if f.Wait != "" {
		d, err := time.ParseDuration(f.Wait)
		if err != nil {
			return shim.Reply{}, err
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return shim.Reply{}, context.Cause(ctx)
		}
	}
	for _, p := range f.Progress {
		s.Progress(shim.Progress{Raw: p})
	}
	for _, p := range f.Logs {
		level, _ := jsonrpc.GetString(p, "level")
		s.Log(shim.Log{Level: level, Raw: p})
	}
	if f.Ask {
		if _, err := s.Ask(ctx, shim.Question{Key: "q", Method: "elicitation/create"}); err != nil {
			return shim.Reply{Error: &shim.RPCError{Code: -32603, Message: err.Error()}}, nil
		}
	}
	switch {
	case f.Block:
		<-ctx.Done()
		return shim.Reply{}, context.Cause(ctx)
	case f.Fail != nil:
		return shim.Reply{}, f.Fail
	case f.Error != nil:
		return shim.Reply{Error: f.Error}, nil
	}
	typ, _ := jsonrpc.GetString(f.Result, "resultType")
	failed, _ := jsonrpc.Get(f.Result, "isError")
	return shim.Reply{Result: f.Result, InputRequired: typ == "input_required", IsError: string(failed) == "true"}, nil
}

func (l *fakeUpstream) Notify(_ context.Context, _ shim.Session, n shim.Notification) error {
	l.note("%s %s\n", n.Method, n.Params)
	return nil
}

func (l *fakeUpstream) OnSessionQuestion(upstream.SessionAsker) {}

func (l *fakeUpstream) TakesToken(context.Context) bool { return false }

func (l *fakeUpstream) Admit(context.Context, shim.Session) (bool, error) { return false, nil }

func (l *fakeUpstream) AsksForRoots(_ context.Context, s shim.Session, _ upstream.Description) bool {
	_, has := jsonrpc.Get(s.Capabilities, "roots")
	return l.Roots && has
}

func (l *fakeUpstream) EndSession(_ context.Context, key string) { l.note("end session %s\n", key) }

func (l *fakeUpstream) Listen(ctx context.Context, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	l.note("listen %+v\n", f)
	if l.Stream.Fail != nil {
		return l.Stream.Fail
	}
	if l.Stream.Mute {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if l.Stream.Honour != nil {
		f = *l.Stream.Honour
	}
	ready(f)
	for _, n := range l.Stream.Send {
		on(n)
	}
	if l.Stream.End {
		return errors.New("the upstream stream ended")
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (l *fakeUpstream) Describe(context.Context, shim.Session) (upstream.Description, error) {
	if l.Down {
		return upstream.Description{}, &shim.UpstreamError{Kind: "unreachable", Message: "the server cannot be reached"}
	}
	return upstream.Description{Era: l.Era, Version: l.Version, Capabilities: l.Capabilities, Info: l.Info,
		Instructions: l.Instructions, Raw: l.Raw}, nil
}

// Forget makes Tool find what a second listing finds.
func (l *fakeUpstream) Forget(shim.Session) {
	l.note("list tools again\n")
	if l.Fresh != nil {
		l.Tools = l.Fresh
	}
}

func (l *fakeUpstream) Tool(_ context.Context, _ shim.Session, name string) (upstream.Tool, bool, error) {
	list := l.Tools
	for _, raw := range list {
		if n, _ := jsonrpc.GetString(raw, "name"); n == name {
			schema, _ := jsonrpc.Get(raw, "inputSchema")
			params, err := mcpheader.Params(schema)
			return upstream.Tool{Params: params, Invalid: err}, true, nil
		}
	}
	return upstream.Tool{}, false, nil
}
