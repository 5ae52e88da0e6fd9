package legacy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/internal/work"
	"taskgate/shim"
)

// scriptedUpstream is an upstream that answers by a script, and takes down what it is
// asked.
type scriptedUpstream struct {
	script upstreamScript

	mu        sync.Mutex
	saw       []string
	listeners map[int]func(shim.Notification)
	serial    int
	ended     []string
	fail      error // what Describe and Call answer, while set
}

// upstreamScript is what a scriptedUpstream knows, as JSON.
type upstreamScript struct {
	Era string `json:"era"`
	// Raw is the InitializeResult or DiscoverResult.
	Raw     json.RawMessage            `json:"raw"`
	Replies map[string]scriptReply     `json:"replies"` // by method, or "method name"
	Tools   map[string]json.RawMessage `json:"tools"`
	Deaf    bool                       `json:"deaf"` // agrees to nothing that it could be listened for
}

type scriptReply struct {
	Result        json.RawMessage   `json:"result"`
	Error         *shim.RPCError    `json:"error"`
	IsError       bool              `json:"isError"`
	InputRequired bool              `json:"inputRequired"`
	Progress      []json.RawMessage `json:"progress"`
	Logs          []json.RawMessage `json:"logs"`
	Every         string            `json:"every"` // how long each progress takes
	After         string            `json:"after"` // how long it takes then
	Blocks        bool              `json:"blocks"`
	Asks          []string          `json:"asks"` // forms with these messages, one after the other; the result has the answers
}

func (l *scriptedUpstream) note(format string, a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.saw = append(l.saw, fmt.Sprintf(format, a...))
}

// seen returns what was taken down since the last time.
func (l *scriptedUpstream) seen() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	saw := l.saw
	l.saw = nil
	return saw
}

func (l *scriptedUpstream) failing() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fail
}

func (l *scriptedUpstream) Call(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
	line := fmt.Sprintf("call %s %s", r.Method, r.Params)
	if r.Progress {
		line += " +progress"
	}
	if r.LogLevel != "" {
		line += " level=" + r.LogLevel
	}
	l.note("%s", line)
	if err := l.failing(); err != nil {
		return shim.Reply{}, err
	}
	reply, ok := l.script.Replies[r.Method+" "+r.Name]
	if !ok {
		reply, ok = l.script.Replies[r.Method]
	}
	if !ok {
		return shim.Reply{Error: &shim.RPCError{Code: mcp.CodeMethodNotFound, Message: "no " + r.Method}}, nil
	}
	return l.play(ctx, r.Method, reply, s)
}

func (l *scriptedUpstream) play(ctx context.Context, method string, reply scriptReply, s shim.Sink) (shim.Reply, error) {
	every, _ := time.ParseDuration(reply.Every)
	for _, p := range reply.Progress {
		if every > 0 && work.Pause(ctx, every) != nil {
			l.note("ended %s: %v", method, context.Cause(ctx))
			return shim.Reply{}, context.Cause(ctx)
		}
		message, _ := jsonrpc.GetString(p, "message")
		s.Progress(shim.Progress{Raw: p, Message: message})
	}
	for _, m := range reply.Logs {
		level, _ := jsonrpc.GetString(m, "level")
		s.Log(shim.Log{Level: level, Raw: m})
	}
	for i, message := range reply.Asks {
		answers, err := s.Ask(ctx, shim.Question{Key: fmt.Sprint("q", i), Method: mcp.MethodElicit,
			Params: json.RawMessage(`{"message":"` + message + `","requestedSchema":{"type":"object","properties":{}}}`)})
		if err != nil {
			return shim.Reply{}, err
		}
		reply.Result = fmt.Appendf(nil, `{"content":[{"type":"text","text":%q}]}`, string(answers[0].Result))
	}
	after := make(<-chan time.Time)
	if !reply.Blocks {
		d, _ := time.ParseDuration(reply.After)
		after = time.After(d)
	}
	select {
	case <-after:
	case <-ctx.Done():
		l.note("ended %s: %v", method, context.Cause(ctx))
		return shim.Reply{}, context.Cause(ctx)
	}
	return shim.Reply{Result: reply.Result, Error: reply.Error, IsError: reply.IsError, InputRequired: reply.InputRequired}, nil
}

func (l *scriptedUpstream) Resume(context.Context, shim.Request, json.RawMessage, shim.Sink) (shim.Reply, error) {
	return shim.Reply{}, shim.ErrNotResumable
}

func (l *scriptedUpstream) Resumable(json.RawMessage) bool { return false }

func (l *scriptedUpstream) Notify(_ context.Context, _ shim.Session, n shim.Notification) error {
	l.note("notify %s %s", n.Method, n.Params)
	return l.failing()
}

func (l *scriptedUpstream) Listen(ctx context.Context, _ shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error {
	if err := l.failing(); err != nil {
		l.note("listen: %v", err)
		return err
	}
	l.note("listen tools=%t prompts=%t resources=%t log=%t %v", f.ToolsListChanged, f.PromptsListChanged, f.ResourcesListChanged, f.Log, f.Resources)
	l.mu.Lock()
	l.serial++
	no := l.serial
	if l.listeners == nil {
		l.listeners = make(map[int]func(shim.Notification))
	}
	l.listeners[no] = on
	l.mu.Unlock()
	if l.script.Deaf {
		f = shim.Filter{}
	}
	ready(f)
	<-ctx.Done()
	l.mu.Lock()
	delete(l.listeners, no)
	l.mu.Unlock()
	l.note("listened")
	return ctx.Err()
}

// say sends a notification to everyone who listens.
func (l *scriptedUpstream) say(n shim.Notification) {
	l.mu.Lock()
	listeners := slices.Collect(maps.Values(l.listeners))
	l.mu.Unlock()
	for _, on := range listeners {
		on(n)
	}
}

func (l *scriptedUpstream) Describe(_ context.Context, s shim.Session) (upstream.Server, error) {
	if err := l.failing(); err != nil {
		return upstream.Server{}, err
	}
	era := mcp.Legacy
	if l.script.Era == "modern" {
		era = mcp.Modern
	}
	caps, _ := jsonrpc.Get(l.script.Raw, "capabilities")
	info, ok := jsonrpc.Get(l.script.Raw, "serverInfo")
	if !ok {
		info, _ = jsonrpc.Get(l.script.Raw, "_meta", mcp.MetaServerInfo)
	}
	return upstream.Server{Era: era, Capabilities: caps, Info: info, Raw: l.script.Raw}, nil
}

func (l *scriptedUpstream) Tool(_ context.Context, _ shim.Session, name string) (upstream.Tool, bool, error) {
	raw, ok := l.script.Tools[name]
	return upstream.Tool{Raw: raw}, ok, l.failing()
}

func (l *scriptedUpstream) Forget(shim.Session) {}

func (l *scriptedUpstream) OnSessionQuestion(upstream.SessionAsker) {}

func (l *scriptedUpstream) Admit(context.Context, shim.Session) (bool, error) { return false, nil }

func (l *scriptedUpstream) EndSession(_ context.Context, key string) {
	l.note("end")
	l.mu.Lock()
	l.ended = append(l.ended, key)
	l.mu.Unlock()
}

func (l *scriptedUpstream) endedSessions() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ended)
}

// noStore is the store of a shim that never makes a task.
type noStore struct{ shim.Store }

func (noStore) Beat(context.Context, shim.Replica, time.Duration) error { return nil }

// legacyServer is a gateway in front of a scripted upstream, at /up/mcp.
type legacyServer struct {
	*gateway.Gateway
	up       *scriptedUpstream
	shim     *shim.Shim
	requests sync.WaitGroup // that are not waited for
}

// newLegacyServer makes one that ends with the test. It offers no tasks, though the
// shim's policy would demand them: legacy clients get none then.
func newLegacyServer(t testing.TB, script upstreamScript, change func(*config.Config), options ...func(*gateway.Options)) *legacyServer {
	t.Helper()
	up := &scriptedUpstream{script: script}
	c := newConfig(nil)
	c.ProgressKeepAlive, c.StoreWait = 0, 0 // gateway/wire has a test of the former
	c.Upstreams[0].Defaults.Tasks = config.TasksNever
	if change != nil {
		change(c)
	}
	sh, err := shim.New(shim.Options{
		Replica: "test", Store: noStore{}, StoreWait: c.StoreWait, Logger: slog.New(slog.DiscardHandler),
		Servers: map[string]shim.Server{"up": {
			Upstream: up,
			Policy:   func(string) shim.Policy { return shim.Policy{Tasks: shim.Required, Timeout: 24 * time.Hour} },
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return startLegacyServer(t, up, sh, c, options...)
}

// startLegacyServer puts a gateway in front of a shim, until the test ends.
func startLegacyServer(t testing.TB, up *scriptedUpstream, sh *shim.Shim, c *config.Config, options ...func(*gateway.Options)) *legacyServer {
	t.Helper()
	c.ResumeAfter = 1000 * time.Hour // ids of events are random; resume_test.go has them
	o := gateway.Options{Config: c, Shim: sh, Upstreams: map[string]upstream.Client{"up": up}, Logger: slog.New(slog.DiscardHandler)}
	for _, change := range options {
		change(&o)
	}
	if o.Sessions == nil {
		o.Sessions = wiretest.OpenSessions(t, c.MaxSessions, c.SessionIdle)
	}
	g, err := gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := &legacyServer{Gateway: g, up: up, shim: sh}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stop()
		if err := errors.Join(<-done, g.Close(bounded), sh.Close(bounded)); err != nil {
			t.Error(err)
		}
		s.requests.Wait() // before the store closes
	})
	return s
}
