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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/internal/work"
	"taskgate/redisstore"
	"taskgate/shim"
	"taskgate/shim/engine"
	"taskgate/shim/node"
)

// world is one store, two replicas over it that make tasks, and a client of theirs, on the clock of a bubble.
type world struct {
	t        *testing.T
	store    *faultyStore
	sessions *faultySessions
	asks     func(shim.Asker) shim.Asker // stands between the shim and the stream of a call; nil for nothing
	config   *config.Config              // of both replicas
	a, b     *legacyServer
	c        *taskClient
}

// asking is a shim whose streams of calls are replaced.
type asking struct {
	*engine.Shim
	asks func(shim.Asker) shim.Asker
}

func (a asking) Call(ctx context.Context, c shim.Call) (shim.Answered, error) {
	if s, ok := c.Stream.(shim.Asker); ok {
		c.Stream = a.asks(s)
	}
	return a.Shim.Call(ctx, c)
}

// inBubble runs a test of this name in virtual time.
func inBubble(t *testing.T, name string, run func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, run)
	})
}

// newWorld opens the store.
func newWorld(t *testing.T) *world {
	t.Helper()
	store := wiretest.Must(redisstore.Open(t.Context(), "embedded", redisstore.Options{ClockTTL: true}))(t)
	t.Cleanup(func() { _ = store.Close() })
	return &world{t: t, store: &faultyStore{Store: store}, sessions: &faultySessions{
		Sessions: &together{Sessions: store.Sessions(node.NewHeart(store, "holder", time.Minute, slog.Default()), 100, time.Hour)}, held: make(chan chan struct{}, 1), leaving: make(chan chan struct{}, 1),
	}}
}

// says has the server of the first replica log something, and lets a second pass.
func (w *world) says(data string) {
	w.a.up.say(shim.Notification{Method: mcp.NotifyMessage, Params: fmt.Appendf(nil, `{"level":"info","data":%q}`, data)})
	wiretest.Wait(time.Second)
}

// start starts the replicas, and a session at the first one.
func (w *world) start(script upstreamScript, c *config.Config, capabilities string, version ...string) *world {
	w.t.Helper()
	w.config, w.a, w.b = c, w.gateway("a", script, c), w.gateway("b", script, c)
	w.c = newClient(w.t, w.a, capabilities, version...)
	return w
}

// newDraftWorld has a server whose tools say something on the way, and a client that declares this.
func newDraftWorld(t *testing.T, capabilities string) *world {
	t.Helper()
	return newWorld(t).start(draftScript(), draftConfig(t), capabilities)
}

// newAskWorld has a server whose tools ask, and a client that can be asked.
func newAskWorld(t *testing.T, change func(*config.Config)) *world {
	t.Helper()
	return newWorld(t).start(askScript(), newConfig(change), `"elicitation":{}`)
}

// inAskWorld plays a story of one in a bubble.
func inAskWorld(t *testing.T, change func(*config.Config), play func(*testing.T, *world)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { play(t, newAskWorld(t, change)) })
}

// inDraftWorld plays a story of the other.
func inDraftWorld(t *testing.T, capabilities string, play func(*testing.T, *world)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { play(t, newDraftWorld(t, capabilities)) })
}

// askScript is a server whose tools ask, or take their time.
func askScript() upstreamScript {
	return upstreamScript{Era: "legacy", Raw: json.RawMessage(`{"capabilities":{"tools":{}}}`), Replies: map[string]scriptReply{
		"tools/call ask":     {Asks: []string{"who?"}},
		"tools/call both":    {Asks: []string{"who?", "why?"}, Together: true},
		"tools/call forever": {Blocks: true},
		"tools/call late":    {Asks: []string{"who?"}, Progress: []json.RawMessage{[]byte(`{}`)}, Every: "60s"},
		"tools/call slow":    {After: "60s", Result: json.RawMessage(`{"content":[]}`)},
		"tools/call twice":   {Asks: []string{"who?", "why?"}},
	}}
}

// gateway starts a replica that ends with the test. All its upstreams are one server.
func (w *world) gateway(name string, script upstreamScript, c *config.Config) *legacyServer {
	w.t.Helper()
	up := &scriptedUpstream{script: script}
	servers, clients := map[string]shim.Server{}, map[string]upstream.Client{}
	for _, u := range c.Upstreams {
		clients[u.Name] = up
		servers[u.Name] = shim.Server{Upstream: up, Queue: 10, Policy: func(tool string, says shim.Hints) shim.Policy {
			p := u.Tool(tool, says)
			return shim.Policy{Tasks: shim.Mode(p.Tasks), Grace: p.Grace, TTL: p.TTL,
				PollInterval: p.PollInterval, InputTimeout: p.InputTimeout, Timeout: p.Timeout, FoldProgress: p.Progress != config.ProgressOff, Partials: shim.NewPartials(p.Progress == config.ProgressContent)}
		}}
	}
	sh := wiretest.Must(engine.New(engine.Options{
		Replica: shim.Replica(name), Store: w.store, Logger: slog.New(slog.DiscardHandler), Servers: servers,
		Heartbeat: 10 * time.Minute, // no replica is lost, and each beat costs time
	}))(w.t)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sh.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
	})
	return startLegacyServer(w.t, up, sh, c, func(o *gateway.Options) {
		if o.Sessions, o.Upstreams = w.sessions, clients; w.asks != nil {
			o.Shim = asking{sh, w.asks}
		}
	})
}

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
	Asks          []string          `json:"asks"`     // forms with these messages, one after the other; the result has the answers
	Together      bool              `json:"together"` // all of them at once
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
	var questions []shim.Question
	for i, message := range reply.Asks {
		questions = append(questions, shim.Question{Key: fmt.Sprint("q", i), Method: mcp.MethodElicit,
			Params: json.RawMessage(`{"message":"` + message + `","requestedSchema":{"type":"object","properties":{}}}`)})
		if reply.Together && len(questions) < len(reply.Asks) {
			continue
		}
		answers, err := s.Ask(ctx, questions...)
		if err != nil {
			return shim.Reply{}, err
		}
		text := ""
		for _, a := range answers {
			text += string(a.Result)
		}
		reply.Result, questions = fmt.Appendf(nil, `{"content":[{"type":"text","text":%q}]}`, text), nil
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

func (l *scriptedUpstream) Describe(_ context.Context, s shim.Session) (upstream.Description, error) {
	if err := l.failing(); err != nil {
		return upstream.Description{}, err
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
	return upstream.Description{Era: era, Capabilities: caps, Info: info, Raw: l.script.Raw}, nil
}

func (l *scriptedUpstream) Tool(_ context.Context, _ shim.Session, name string) (upstream.Tool, bool, error) {
	raw, ok := l.script.Tools[name]
	output, _ := jsonrpc.Get(raw, "outputSchema")
	return upstream.Tool{OutputSchema: output}, ok, l.failing()
}

func (l *scriptedUpstream) Forget(shim.Session) {}

func (l *scriptedUpstream) OnSessionQuestion(upstream.SessionAsker) {}

func (l *scriptedUpstream) TakesToken(context.Context) bool { return false }

func (l *scriptedUpstream) Admit(context.Context, shim.Session) (bool, error) { return false, nil }

func (l *scriptedUpstream) AsksForRoots(context.Context, shim.Session, upstream.Description) bool {
	return false
}

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
	shim     *engine.Shim
	requests sync.WaitGroup // that are not waited for
}

// newLegacyServer makes one that ends with the test. It offers no tasks, though the
// shim's policy would demand them: legacy clients get none then.
func newLegacyServer(t testing.TB, script upstreamScript, change func(*config.Config), options ...func(*gateway.Options)) *legacyServer {
	t.Helper()
	up := &scriptedUpstream{script: script}
	c := newConfig(nil)
	c.ProgressKeepAlive, c.StoreWait = 0, 0 // gateway/wire has a test of the former
	c.SessionIdle = 10 * time.Minute        // a day takes long, in virtual time too
	c.Upstreams[0].Defaults.Tasks = config.TasksNever
	if change != nil {
		change(c)
	}
	sh := wiretest.Must(engine.New(engine.Options{
		Replica: "test", Store: noStore{}, StoreWait: c.StoreWait, Logger: slog.New(slog.DiscardHandler),
		Servers: map[string]shim.Server{"up": {
			Upstream: up,
			Policy: func(string, shim.Hints) shim.Policy {
				return shim.Policy{Tasks: shim.Required, Timeout: 24 * time.Hour}
			},
		}},
	}))(t)
	return startLegacyServer(t, up, sh, c, options...)
}

// startLegacyServer puts a gateway in front of a shim, until the test ends.
func startLegacyServer(t testing.TB, up *scriptedUpstream, sh *engine.Shim, c *config.Config, options ...func(*gateway.Options)) *legacyServer {
	t.Helper()
	c.ResumeAfter = 1000 * time.Hour // ids of events are random; resume_test.go has them
	o := gateway.Options{Config: c, Shim: sh, Upstreams: map[string]upstream.Client{"up": up}, Logger: slog.New(slog.DiscardHandler)}
	for _, change := range options {
		change(&o)
	}
	if o.Sessions == nil {
		o.Sessions = wiretest.OpenSessions(t, c.Limits.Within(0).MaxSessions, c.SessionIdle)
	}
	g := wiretest.Must(gateway.New(o))(t)
	s := &legacyServer{Gateway: g, up: up, shim: sh}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		bounded, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stop()
		wiretest.Check(t, errors.Join(<-done, g.Close(bounded), sh.Close(bounded)))
		s.requests.Wait() // before the store closes
	})
	return s
}

// faultyStore cannot be read while it is dark, and has a task as it was before, once it has one.
type faultyStore struct {
	shim.Store
	dark atomic.Bool
	was  atomic.Pointer[shim.Task]
}

func (f *faultyStore) Get(ctx context.Context, id shim.ID, part shim.Part) (shim.Task, error) {
	if f.dark.Load() {
		return shim.Task{}, shim.ErrUnavailable
	}
	if t := f.was.Load(); t != nil && t.ID == id {
		return *t, nil
	}
	return f.Store.Get(ctx, id, part)
}

// faultySessions lose and keep back what the store says, as they are told.
type faultySessions struct {
	legacy.Sessions
	put      atomic.Bool        // states are not stored
	away     atomic.Bool        // logs can neither be added to nor ended
	forgets  atomic.Bool        // logs forget what is added before anybody reads it, as in a Redis that comes back older
	gone     atomic.Bool        // logs can neither be read nor left
	since    atomic.Bool        // the reply to the next reading of a GET stream is lost
	unread   atomic.Bool        // the logs of calls are not handed over
	missing  atomic.Int64       // up to this one messages may be missing; 0 for none
	unknown  atomic.Bool        // they have come back as they were before the streams of calls
	shy      atomic.Bool        // no question gets into the log of a GET stream
	unheard  atomic.Int64       // so many GET streams more are opened without a reply
	unopened atomic.Int64       // so many streams more cannot be opened
	mute     atomic.Int64       // so many questions more are asked whose asker does not hear of it
	older    atomic.Int64       // they have come back as they were after this message; 0 for not
	looks    atomic.Int64       // how often a log was looked at
	held     chan chan struct{} // closed for the next one to open a log to go on
	leaving  chan chan struct{} // closed for the next one to leave a log to go on
	opened   sync.Map           // the streams that were opened
	lost     sync.Map           // those whose replica has died
}

func (f *faultySessions) Append(ctx context.Context, id, stream string, message []byte) (int64, error) {
	if f.away.Load() {
		return 0, shim.ErrUnavailable
	}
	if f.forgets.Load() {
		return f.Sessions.Post(ctx, id, "forgotten", message)
	}
	return f.Sessions.Append(ctx, id, stream, message)
}

func (f *faultySessions) Post(ctx context.Context, id, stream string, message []byte) (int64, error) {
	if f.away.Load() {
		return 0, shim.ErrUnavailable
	}
	if f.forgets.Load() {
		stream = "forgotten"
	}
	return f.Sessions.Post(ctx, id, stream, message)
}

func (f *faultySessions) Leave(ctx context.Context, id, stream string, note []byte) error {
	if f.away.Load() || f.gone.Load() {
		return shim.ErrUnavailable
	}
	select {
	case held := <-f.leaving:
		<-held
	default:
	}
	return f.Sessions.Leave(ctx, id, stream, note)
}

func (f *faultySessions) Finish(ctx context.Context, id, stream string, gone bool) error {
	if f.away.Load() {
		return shim.ErrUnavailable
	}
	if f.forgets.Load() {
		return nil
	}
	return f.Sessions.Finish(ctx, id, stream, gone)
}

func (f *faultySessions) Put(ctx context.Context, id string, rev int64, state []byte) (int64, error) {
	if f.put.Load() {
		return 0, shim.ErrUnavailable
	}
	return f.Sessions.Put(ctx, id, rev, state)
}

func (f *faultySessions) Ask(ctx context.Context, id, stream, asker, question, void string, message []byte) (int64, string, bool, error) {
	if f.shy.Load() && stream == legacy.GetStream {
		return 0, "", false, shim.ErrUnavailable
	}
	no, holder, has, err := f.Sessions.Ask(ctx, id, stream, asker, question, void, message)
	if f.mute.Add(-1) >= 0 {
		return 0, "", false, shim.ErrUnavailable
	}
	return no, holder, has, err
}

func (f *faultySessions) Since(ctx context.Context, id, stream string, after int64, on func(no int64, message []byte)) (string, []byte, error) {
	get := stream == legacy.GetStream
	switch {
	case f.gone.Load(), f.unread.Load() && !get, get && after == 0 && f.since.CompareAndSwap(true, false):
		return "", nil, shim.ErrUnavailable
	case !get && f.unknown.Load():
		return "", nil, nil
	}
	older := f.older.Load()
	state, note, err := f.Sessions.Since(ctx, id, stream, after, func(no int64, message []byte) {
		if older == 0 || no <= older {
			on(no, message)
		}
	})
	if gap := f.missing.Load(); gap > after {
		on(gap, nil)
	}
	return f.noteLook(stream, state), note, err
}

func (f *faultySessions) State(ctx context.Context, id, stream string) (string, []byte, error) {
	switch {
	case f.gone.Load():
		return "", nil, shim.ErrUnavailable
	case stream != legacy.GetStream && f.unknown.Load():
		return "", nil, nil
	}
	state, note, err := f.Sessions.State(ctx, id, stream)
	return f.noteLook(stream, state), note, err
}

// noteLook counts a look at a stream, whose replica may have died.
func (f *faultySessions) noteLook(stream, state string) string {
	f.looks.Add(1)
	if _, lost := f.lost.Load(stream); lost {
		return "lost"
	}
	return state
}

func (f *faultySessions) Open(ctx context.Context, id, stream string, note []byte) (int64, error) {
	f.opened.Store(stream, true)
	select {
	case held := <-f.held:
		<-held
	default:
	}
	if f.unopened.Add(-1) >= 0 {
		return 0, shim.ErrUnavailable
	}
	after, err := f.Sessions.Open(ctx, id, stream, note)
	if stream == legacy.GetStream && f.unheard.Load() > 0 && f.unheard.Add(-1) >= 0 {
		return 0, shim.ErrUnavailable
	}
	if older := f.older.Load(); older > 0 {
		after = min(after, older)
	}
	return after, err
}

// together are sessions that several gateways of one process use: each is told of all.
type together struct {
	legacy.Sessions
	mu    sync.Mutex
	users []sessionsUser
}

// sessionsUser is what one gateway gives to Run.
type sessionsUser struct {
	busy   func(string) bool
	ended  func(string, []byte)
	signal func(id, text, token string, at time.Time)
}

// Run implements Sessions. The first gateway's run serves all.
func (s *together) Run(ctx context.Context, busy func(string) bool, ended func(string, []byte), signal func(id, text, token string, at time.Time)) error {
	s.mu.Lock()
	s.users = append(s.users, sessionsUser{busy, ended, signal})
	first := len(s.users) == 1
	s.mu.Unlock()
	if !first {
		<-ctx.Done()
		return nil
	}
	return s.Sessions.Run(ctx, func(id string) bool {
		return slices.ContainsFunc(s.all(), func(u sessionsUser) bool { return u.busy(id) })
	}, func(id string, state []byte) {
		for _, u := range s.all() {
			u.ended(id, state)
		}
	}, func(id, text, token string, at time.Time) {
		for _, u := range s.all() {
			u.signal(id, text, token, at)
		}
	})
}

func (s *together) all() []sessionsUser {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}
