package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"taskgate/gateway/remember"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/listed"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// Client is what the gateway uses of a server itself; tools/call goes through the shim. ServerClient implements it.
type Client interface {
	Gate
	// Call sends one request and blocks for its reply.
	Call(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error)
	// Notify sends a notification in a session that exists.
	Notify(ctx context.Context, s shim.Session, n shim.Notification) error
	// Listen hands over notifications from outside of any call, until ctx ends.
	Listen(ctx context.Context, s shim.Session, f shim.Filter, ready func(shim.Filter), on func(shim.Notification)) error
	// Describe says what the server is.
	Describe(ctx context.Context, s shim.Session) (Description, error)
	// Tool finds a tool by name; false if the server does not list it.
	Tool(ctx context.Context, s shim.Session, name string) (Tool, bool, error)
	// Forget drops what is cached of the tools.
	Forget(s shim.Session)
	ClientSessions
}

// ClientSessions is what concerns the sessions of clients outside of any request of theirs.
type ClientSessions interface {
	// OnSessionQuestion sets how a session question is put to the client of its session. It is called before
	// all other methods, and may be called again.
	OnSessionQuestion(f SessionAsker)
	// EndSession says that the session of this key (Session.Key) has ended.
	EndSession(ctx context.Context, key string)
	// AsksForRoots reports whether a server that describes itself so asks clients like this one for their roots outside of
	// any call. It may wait some hundred milliseconds for that, once for a server.
	AsksForRoots(ctx context.Context, s shim.Session, d Description) bool
}

// ServerClient is the client of one MCP server over Streamable HTTP, HTTP+SSE, or the configured transport, in the
// era that the server speaks. It is safe for concurrent use. It implements shim.Upstream.
type ServerClient struct {
	wire     *wire
	work     *work.Background
	memory   *memory
	probing  singleflight.Group
	sessions *sessionTable
}

var (
	_ Client        = (*ServerClient)(nil)
	_ shim.Upstream = (*ServerClient)(nil)
)

// New makes the client of one server. The server is first contacted when it is needed. The error says what is
// wrong with the configuration.
func New(c Config) (*ServerClient, error) {
	w, err := newWire(c)
	if err != nil {
		return nil, err
	}
	h := &ServerClient{wire: w, work: work.NewBackground(errClosed)}
	h.memory = &memory{
		era: w.cfg.Era, log: w.log,
		seen:  remember.New[sessionKey, Description](h.work, w.cfg.MaxSeen),
		lists: remember.New[sessionKey, map[string]Tool](h.work, maxLists),
	}
	h.memory.marks, _ = lru.New[sessionKey, *listed.Marks](maxLists) // fails only for size 0
	h.memory.cur.Store(&verdict{})
	h.sessions = &sessionTable{wire: w, work: h.work, memory: h.memory, m: make(map[string]map[string]*session)}
	return h, nil
}

// Describe says what kind of server this is, for clients of this era with these capabilities, and in which
// era it is spoken to for them. It asks the server the first time, and again when the last answer is old. The
// old answer serves until the server gives a new one. A legacy server is asked by opening a session; an
// unshared session with Key "" is ended again. Errors are *shim.UpstreamError.
//
// A client that begins a session with a token which the server has refused asks the server itself, which may take
// the token again.
func (h *ServerClient) Describe(ctx context.Context, s shim.Session) (Description, error) {
	if s.Legacy && s.Key != "" && forward.Of(ctx).Doubted && !h.sessions.hasSession(ctx, s) {
		srv, _, err := h.describeServer(ctx, s)
		return srv, publicError(err)
	}
	srv, err := h.memory.seen.Get(ctx, clientsLike(ctx, s), remember.Wait, func(ctx context.Context) (Description, time.Duration, error) { return h.describeServer(ctx, s) })
	if srv == nil {
		return Description{}, publicError(err)
	}
	if err != nil {
		h.wire.log.Debug("what the server says of itself was not renewed", "err", err)
	}
	return srv.Value, nil
}

// EndSession says that the session called key (Session.Key) has ended. Its
// upstream sessions are deleted once their last call has ended.
func (h *ServerClient) EndSession(ctx context.Context, key string) {
	if key == "" {
		return
	}
	h.sessions.endKey(ctx, key)
	h.memory.lists.Drop(func(k sessionKey) bool { return k.key == key })
}

// Close deletes the upstream sessions that have no calls, closes idle connections, and waits until ctx ends
// for the goroutines of the client. Calls in flight belong to their callers, and go on. Sessions of detached
// calls are kept for the replica that resumes them.
func (h *ServerClient) Close(ctx context.Context) error {
	h.sessions.closeAll()
	err := h.work.Close(ctx)
	return errors.Join(err, h.wire.via.Close(ctx))
}

// Forget drops the cached tools of this session, so that the next Tool lists them anew.
func (h *ServerClient) Forget(s shim.Session) { h.memory.forgetTools(s) }

// SweepSessions ends the sessions shared by replicas that none has used for long.
func (h *ServerClient) SweepSessions(ctx context.Context) {
	if h.wire.cfg.Sessions != nil {
		h.sessions.sweepShared(ctx)
	}
}

// DropDoubted drops, in the background, the sessions shared by clients whose latest call has failed, and in which the
// server answers no more. Those that work stay.
func (h *ServerClient) DropDoubted() { h.work.Go(context.Background(), h.sessions.dropDoubted) }

// Reach finds out whether a connection to the server can be opened: to its host and port, or to those of the
// proxy that leads there. It only connects, so it costs the server little and starts no session. A configured
// transport decides by itself whether it reaches the server.
func (h *ServerClient) Reach(ctx context.Context) error { return h.wire.via.Reach(ctx) }

// Spoken says how the server is spoken to: in which era, "both" if clients have their own; and by which
// transport, sse or http. Each is "" until it is known.
func (h *ServerClient) Spoken() (era, transport string) {
	v := h.memory.knownVerdict()
	switch {
	case v.era == mcp.NoEra && v.shaken.Load():
		era = mcp.Legacy.String()
	case v.era == mcp.Modern && v.shaken.Load():
		era = "both"
	case v.era != mcp.NoEra:
		era = v.era.String()
	}
	switch {
	case h.wire.older != nil && h.wire.older.Speaks():
		transport = string(WaySSE)
	case era != "" && h.wire.cfg.Transport == nil:
		transport = string(WayHTTP)
	}
	return era, transport
}

// OnSessionQuestion sets how session questions are put. Until then they are refused.
func (h *ServerClient) OnSessionQuestion(f SessionAsker) { h.sessions.askSession.Store(&f) }

// Resume goes on with a call from a checkpoint, possibly one of another replica. It sends the server only a
// request for the rest of the stream, requests about the task that the server made of the call, the answers
// to open questions and, if ctx ends, the cancellation. shim.ErrNotResumable: the stream cannot be resumed,
// or the server says that the answer is lost.
func (h *ServerClient) Resume(ctx context.Context, r shim.Request, cp json.RawMessage, s shim.Sink) (shim.Reply, error) {
	c, ok := decodeResumable(cp)
	if !ok || c.Job != nil && r.Job == nil {
		return shim.Reply{}, shim.ErrNotResumable
	}
	ctx = forward.For(ctx, forward.Later)
	if c.sessionQuestion() {
		return h.sessions.resumeSessionQuestion(ctx, r, c, s)
	}
	if err := forward.Represented(ctx, r.Session); err != nil {
		return shim.Reply{}, err
	}
	if r.Job != nil {
		return h.resumeJob(ctx, r, c, s)
	}
	reply, err := h.resumeCall(ctx, r, c, s)
	r.Shown = c.Called
	return reading.ShowName(r, reply), err
}

// resumeCall is Resume of a call whose answer is awaited.
func (h *ServerClient) resumeCall(ctx context.Context, r shim.Request, c checkpoint, s shim.Sink) (shim.Reply, error) {
	if c.Era == mcp.Modern.String() {
		x := h.wire.modernExchange(r, s, c.Version)
		x.outside = h.memory
		if err := x.goOn(ctx, c, r.Rounds); err != nil {
			return shim.Reply{}, notResumed(err)
		}
		return taskReply(r, x.answer)
	}
	ses, l := h.sessions.adoptSession(ctx, r.Session, c.generationOf())
	defer ses.releaseSession()
	x := ses.newExchange(l.target, r, s)
	err := x.goOn(ctx, c, r.Rounds)
	if err == nil {
		return reading.SessionReply(r.Method, x.answer)
	}
	if isDetached(ctx) {
		ses.retainSession()
	}
	if out, ok := errors.AsType[*outOfReach](err); ok {
		if out.err.Kind == shim.KindSession {
			ses.loseGeneration(l)
		} else {
			_ = ses.verifyGeneration(ctx, l)
		}
	}
	return shim.Reply{}, notResumed(err)
}

// goOn is resumeCall from a checkpoint.
func (x *exchange) goOn(ctx context.Context, c checkpoint, asks bool) error {
	x.id, x.checkpoints.state, x.asks = c.ID, c, asks
	if c.Task != nil {
		x.task = newServerTask(x, c.Task)
	}
	return x.resumeCall(ctx)
}

// notResumed is the error of a call that failed to go on from a checkpoint.
func notResumed(err error) error {
	if out, ok := errors.AsType[*outOfReach](err); ok {
		return fmt.Errorf("%w: %w", shim.ErrNotResumable, out.err)
	}
	return publicError(err)
}

// Resumable reports whether a call can go on from a checkpoint: that of a legacy server with an event id,
// that of any server with the name of its task or of a job, or that of a session question. Only the server knows whether
// it still has the stream or the task.
func (h *ServerClient) Resumable(cp json.RawMessage) bool {
	_, ok := decodeResumable(cp)
	return ok
}

// taskReply is the reply of a call that has become a task of a modern server.
func taskReply(r shim.Request, a reading.Response) (shim.Reply, error) {
	if a.Error != nil {
		return reading.ModernFailure(a.Error.Code, a.Error), nil
	}
	return reading.ModernReply(r, a)
}
