package legacy

import (
	"context"
	"slices"
	"sync"
	"time"

	"taskgate/gateway/translate"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/forward"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

const (
	// listenReady is how long a client waits for the upstream to accept a subscription. From then on all
	// changes upstream reach the client.
	listenReady = 5 * time.Second
	// listenLinger is how long the gateway goes on listening for a client whose GET stream is closed: long
	// enough for a client that reconnects, and short enough to keep clients that are gone from adding up.
	listenLinger = time.Minute
	// listenRetry and listenRetryMax bound the pause before the gateway listens again after the upstream was
	// lost.
	listenRetry    = time.Second
	listenRetryMax = 30 * time.Second
)

// listener hears, for one session, what its upstream says outside of any call, and posts it to the log of the
// session's GET stream. It listens from the first GET stream or subscription until listenLinger after the last
// GET stream.
type listener struct {
	s *session

	turn work.Turn // of the one start under way

	mu      sync.Mutex
	uris    []string                // the resources that the current one listens for
	agreed  shim.Filter             // what the upstream agreed to
	failed  error                   // why agreed is empty; nil once the upstream has agreed
	stop    context.CancelCauseFunc // ends the current one; nil if there is none
	ended   chan struct{}           // closed when the latest one has ended
	review  *reviewer               // lasts as long as there is one
	hearing int                     // the number of the one whose messages count
	started int
}

func newListener(s *session) *listener {
	return &listener{s: s, turn: work.NewTurn()}
}

// currentDigest is the digest of the resources listened for; "" until the upstream is heard.
func (l *listener) currentDigest() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stop == nil || l.hearing != l.started {
		return ""
	}
	return digestOf(l.uris)
}

// isActive reports whether the upstream is being listened to.
func (l *listener) isActive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stop != nil
}

// startListening listens for changes of lists and of the session's subscriptions, and returns what the upstream
// agreed to. The listening before it goes on until then, so that each message comes once. An unreachable
// upstream is tried again, also after an error was returned.
func (l *listener) startListening(ctx context.Context, up upstream.Client) (shim.Filter, error) {
	if err := l.turn.TakeWithin(ctx); err != nil {
		return shim.Filter{}, err
	}
	defer l.turn.Give()
	uris := l.s.currentState().Subscriptions
	l.mu.Lock()
	if l.s.table.ctx.Err() != nil || l.s.ctx.Err() != nil || l.stop != nil && slices.Equal(l.uris, uris) {
		defer l.mu.Unlock()
		return l.agreed, l.failed
	}
	old := l.stop
	if old == nil {
		l.review = newReviewer(ctx, l, up)
	}
	run, stop := context.WithCancelCause(upstream.WhileHere(forward.Carry(l.s.ctx, ctx), l.s.isAttached)) // it asks in the name of its client
	l.started++
	no := l.started
	l.uris, l.agreed, l.failed, l.stop = uris, shim.Filter{}, errListenLate, stop
	ready, ended := make(chan struct{}), make(chan struct{})
	l.ended = ended
	once := sync.OnceFunc(func() { close(ready) })
	l.s.table.work.Go(func() {
		defer close(ended)
		defer once()
		l.listenUntilEnd(run, up, uris, no, once)
	})
	l.mu.Unlock()

	// listenUntilEnd wakes it when the server agrees; after listenReady the caller goes on.
	_ = work.PauseFor(ctx, ready, listenReady)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hearing = no
	if old != nil {
		old(nil)
	}
	return l.agreed, l.failed
}

// errListenLate says that the upstream takes longer than listenReady to agree.
var errListenLate = &shim.UpstreamError{Kind: shim.KindTimeout, Message: "the server did not accept the subscription in time"}

// listenUntilEnd listens until ctx ends, or the server has nothing to send. An unreachable server is tried
// again.
func (l *listener) listenUntilEnd(ctx context.Context, up upstream.Client, uris []string, no int, once func()) {
	ready := func(agreed shim.Filter) {
		l.mu.Lock()
		l.hearing = max(l.hearing, no)
		if l.started == no {
			l.agreed, l.failed = agreed, nil
		}
		l.mu.Unlock()
		once()
	}
	for pause := listenRetry; ; pause = min(2*pause, listenRetryMax) {
		server, err := up.Describe(ctx, l.s.upstreamSession(ctx))
		if err == nil {
			f := listenFilter(server, uris)
			_, f.Elicitations = jsonrpc.Get(translate.Answerable(l.s.currentState().Capabilities), "elicitation", "url")
			err = up.Listen(ctx, l.s.upstreamSession(ctx), f, ready, func(n shim.Notification) { l.takeNotification(no, n) })
		}
		l.mu.Lock()
		if l.started == no && l.failed != nil { // it has yet to agree
			l.failed = err
		}
		l.mu.Unlock()
		once()
		if err == nil || ctx.Err() != nil {
			return
		}
		if work.Pause(ctx, pause) != nil {
			return
		}
	}
}

// takeNotification takes one notification. It counts only if it comes by the newest listening that works: two
// may be under way for a moment.
func (l *listener) takeNotification(no int, n shim.Notification) {
	l.mu.Lock()
	counts := l.hearing == no
	l.mu.Unlock()
	if counts && isUnsolicited(n, l.s.currentState().LogLevel) {
		params := jsonrpc.Without(n.Params, "_meta", mcp.MetaSubscriptionID)
		l.s.postMessage(jsonrpc.AppendNotification(nil, n.Method, jsonrpc.WithoutEmpty(params, "_meta")))
	}
}

// isUnsolicited reports whether a notification may go to a client outside of any request, at the log level that
// the client asked for. Notifications of the gateway's own calls and tasks are left out.
func isUnsolicited(n shim.Notification, level string) bool {
	switch n.Method {
	case mcp.NotifyProgress, mcp.NotifyCancelled, mcp.NotifyAcknowledged,
		mcp.NotifyTask, mcp.NotifyTaskStatus, mcp.NotifyTaskPartial:
		return false
	case mcp.NotifyMessage:
		l, _ := jsonrpc.GetString(n.Params, "level")
		return loudEnough(l, level)
	}
	return true
}

// loudEnough reports whether a log message reaches the level that a client asked for. Until the client asks for
// a level, the server decides what it sends. A message with an unknown level passes too.
func loudEnough(level, want string) bool {
	have := mcp.LogSeverity(level)
	return have < 0 || have >= mcp.LogSeverity(want)
}

// endLeft ends the listening if no GET stream has been open here for listenLinger since it began, and returns
// how long that is. If ctx has ended, another listening may have begun, and goes on.
func (l *listener) endLeft(ctx context.Context, began time.Time) (left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left = l.s.timeDetached(began); left >= listenLinger && ctx.Err() == nil {
		l.quitListening(nil)
	}
	return left
}

// endListening ends the listening until there is a reason to begin again. The cause may be upstream.ErrMoved. The
// channel is closed once it has ended: then the log has what it has heard.
func (l *listener) endListening(cause error) (ended <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.quitListening(cause)
	return l.ended
}

func (l *listener) quitListening(cause error) {
	if l.stop != nil {
		l.stop(cause)
		l.review.endReview()
		l.stop, l.review = nil, nil
	}
}

// listenFilter is what to listen for. A modern server is asked for what it advertises; a legacy server decides
// what it sends on its stream.
func listenFilter(s upstream.Description, uris []string) shim.Filter {
	changes := func(list string) bool {
		v, _ := jsonrpc.Get(s.Capabilities, list, "listChanged")
		return s.Era != mcp.Modern || string(v) == "true"
	}
	return shim.Filter{
		ToolsListChanged:     changes("tools"),
		PromptsListChanged:   changes("prompts"),
		ResourcesListChanged: changes("resources"),
		Resources:            uris,
		Log:                  true,
	}
}
