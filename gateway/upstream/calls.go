package upstream

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// sessionCalls are the calls in flight of one session, and what they share: the ids of the server's requests
// that were heard, and the GET stream, on which a server may ask without naming the call (X4). Servers built
// on the TypeScript SDK ask there, unless their tool names the request that it asks for. Such a question belongs to the
// session (routeQuestion). The session owns it; mu guards the fields below it.
type sessionCalls struct {
	stream  asideStream
	claimed *lru.Cache[string, struct{}] // ids of the server's requests that were taken care of

	mu    sync.Mutex
	calls []*exchange          // in flight and open to questions, the oldest first
	open  int                  // session questions for which the server may be silent
	more  chan struct{}        // closed at the next addCall; nil until somebody waits for that
	told  map[string]*exchange // in flight, by the ids of their requests; that of the call is its progress token
}

// maxClaimed is how many request ids of a server a session remembers.
const maxClaimed = 1024

// asideStream is the GET stream of a session, as its calls use it.
type asideStream interface {
	// needStream keeps the stream open until doneStream is called. opened is closed once the attempt to open
	// the stream has succeeded or failed; it is nil if the server is known to lack such a stream.
	needStream(ctx context.Context) (opened <-chan struct{})
	doneStream()
	// awaitStream waits a moment for opened: a question may be lost if the server asks it before the stream
	// is open.
	awaitStream(ctx context.Context, opened <-chan struct{})
	// isOpen reports whether this replica has the stream open.
	isOpen() bool
}

// claimRequest reports whether this request of the server is new to the session, and notes its id: a resumed
// stream may repeat a request that another call has heard.
func (c *sessionCalls) claimRequest(id jsonrpc.ID) bool {
	known, _ := c.claimed.ContainsOrAdd(id.Key(), struct{}{})
	return !known
}

// disclaimRequest gives back the open questions of a detached call. If the call comes back to this replica
// with a checkpoint from before the questions, it hears them again.
func (c *sessionCalls) disclaimRequest(questions []pending) {
	for _, q := range questions {
		c.claimed.Remove(q.requestID().Key())
	}
}

// followStream and unfollowStream keep the requests that hear messages for them on the GET stream.
func (c *sessionCalls) followStream(id string, x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told[id] = x
}

func (c *sessionCalls) unfollowStream(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.told, func(_ string, other *exchange) bool { return other == x })
}

// passAnswer hands an answer that has come on the GET stream to its request. It belongs on the stream of the
// request (X4), but clients go by the id alone. Servers of the Ruby SDK before 0.11 take a request with 202 while
// the GET stream is open, and answer there (ruby-sdk #294).
func (c *sessionCalls) passAnswer(m jsonrpc.Message) {
	c.mu.Lock()
	x := c.told[m.ID.String()]
	c.mu.Unlock()
	if x == nil || !x.awaitsAnswer(m.ID) {
		return
	}
	if m, err := jsonrpc.ParseLenient(bytes.Clone(m.Raw)); err == nil { // the stream uses its buffer again
		x.hearAside(&transport.Event{Message: m})
	}
}

// loseAnswers tells the requests in flight that the GET stream has ended: an answer on it is lost.
func (c *sessionCalls) loseAnswers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.told {
		x.hearAside(&transport.Event{Err: io.ErrUnexpectedEOF})
	}
}

// passProgress hands progress from another stream to the call that has its token, and reports whether the
// call is here. Progress belongs on the stream of the call (X4). But clients go by the token alone, and
// mcp-go 1.2.1 sends progress on any stream of the session that is ready.
func (c *sessionCalls) passProgress(params []byte) bool {
	c.mu.Lock()
	x := c.told[tokenOf(params)]
	c.mu.Unlock()
	if x == nil || !x.progress {
		return false
	}
	x.checkpoints.tellAside(params, func() {
		x.idle.noteHeard()
		x.sink.Progress(progressOf(params))
	})
	return true
}

// addCall and removeCall keep the list of the calls that can be asked.
func (c *sessionCalls) addCall(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, x)
	for range c.open {
		x.idle.pauseWatch()
	}
	if c.more != nil {
		close(c.more)
		c.more = nil
	}
}

// allowSilence pauses the watches over the server's silence: one of the calls may wait for the answer to a session
// question.
func (c *sessionCalls) allowSilence() (over func()) {
	each := func(n int, do func(*exchange)) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open += n
		for _, x := range c.calls {
			do(x)
		}
	}
	each(1, func(x *exchange) { x.idle.pauseWatch() })
	return func() { each(-1, func(x *exchange) { x.idle.resumeWatch() }) }
}

// nextCall is closed when there is another call.
func (c *sessionCalls) nextCall() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.more == nil {
		c.more = make(chan struct{})
	}
	return c.more
}

// showQuestion has a call show a session question, and returns that call; nil if none does. It is the newest one whose
// client has no other questions, or else the newest. had are those that have shown it before.
func (c *sessionCalls) showQuestion(p pending, had map[*exchange]bool) *exchange {
	calls := c.newestFirst()
	for _, busy := range []bool{false, true} {
		for _, x := range calls {
			if !had[x] && x.asking.isAsking() == busy && x.asking.showQuestion(p) {
				return x
			}
		}
	}
	return nil
}

// showUntilEnd has the calls show a session question, until ctx ends: one at a time, and another when that ends.
// answered gets what a call was told, be it that its time to answer is over.
func (c *sessionCalls) showUntilEnd(ctx context.Context, p pending, answered func(shim.Answer)) {
	had := make(map[*exchange]bool)
	for ctx.Err() == nil {
		next := c.nextCall()
		p.over = make(chan shim.Answer, 1)
		x := c.showQuestion(p, had)
		if x == nil {
			select {
			case <-next: // the server waits, and input_timeout ends ctx
			case <-ctx.Done():
			}
			continue
		}
		had[x] = true
		select {
		case a, ok := <-p.over:
			if ok {
				answered(a)
				return
			}
		case <-ctx.Done():
			x.asking.withdrawQuestion(func(other pending) bool { return other.Key == p.Key })
		}
	}
}

// refuseAll returns why none of the calls may ask this; nil if one may.
func (c *sessionCalls) refuseAll(m jsonrpc.Message) (refused *jsonrpc.Error) {
	refused = notSupported(mcp.CodeMethodNotFound, m.Method)
	for _, x := range c.newestFirst() {
		if refused = x.asking.refuse(m); refused == nil {
			return nil
		}
	}
	return refused
}

func (c *sessionCalls) removeCall(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = slices.DeleteFunc(slices.Clone(c.calls), func(other *exchange) bool { return other == x })
}

// newestFirst returns those calls, the newest first.
func (c *sessionCalls) newestFirst() []*exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := slices.Clone(c.calls)
	slices.Reverse(calls)
	return calls
}

// callsFor returns the calls that a request of the server may be for, the newest first: all of them, or, if it names a
// task (L31), the call with that task, and those whose tasks the server has yet to name.
func (c *sessionCalls) callsFor(m jsonrpc.Message) []*exchange {
	calls := c.newestFirst()
	named, _ := jsonrpc.GetString(m.Params, "_meta", mcp.MetaRelatedTask, "taskId")
	if named == "" {
		return calls
	}
	if i := slices.IndexFunc(calls, func(x *exchange) bool { return x.checkpoints.taskID() == named }); i >= 0 {
		return calls[i : i+1]
	}
	return slices.DeleteFunc(calls, func(x *exchange) bool { return x.task == nil || x.checkpoints.taskID() != "" })
}

// askCall puts a request of the server to the newest call whose client declared the kind and that may ask
// more. If all calls refuse, it returns the refusal (protocol.md 7.4).
func (c *sessionCalls) askCall(m jsonrpc.Message) (refused *jsonrpc.Error) {
	refused = notSupported(mcp.CodeMethodNotFound, m.Method)
	for _, x := range c.callsFor(m) {
		if refused = x.asking.addQuestion(m, true); refused == nil {
			return nil
		}
	}
	return refused
}

// passCancellation withdraws the server's request of this id, and reports whether it was put to one of these
// calls.
func (c *sessionCalls) passCancellation(id []byte) bool {
	return slices.ContainsFunc(c.newestFirst(), func(x *exchange) bool { return x.asking.cancelQuestion(id) })
}

// passCompleted tells a call, if the session lacks a listener, that an elicitation by URL is complete. It
// reports whether a call took it: the newest one has the only stream that is left (X5). Only the Sink of a
// legacy client's call is a shim.Completer.
func (c *sessionCalls) passCompleted(params []byte) bool {
	for _, x := range c.newestFirst() {
		to, ok := x.sink.(shim.Completer)
		if v, _ := jsonrpc.Get(x.caller.Capabilities, "elicitation", "url"); ok && jsonrpc.IsObject(v) {
			x.checkpoints.tellAside(params, func() { to.Completed(params) })
			return true
		}
	}
	return false
}

// aside is the stream of an answer that comes on the GET stream of the session: see sessionCalls.passAnswer.
type aside struct{ x *exchange }

// isAnsweredAside reports whether the server has taken a request with 202, to answer it on the GET stream.
func (x *exchange) isAnsweredAside(err error) bool {
	se, ok := err.(*transport.StatusError)
	return ok && se.Status == http.StatusAccepted && x.calls != nil && (len(x.beside) > 0 || x.calls.stream.isOpen())
}

// hearAside keeps the answer on the GET stream, or its loss, whichever comes first.
func (x *exchange) hearAside(e *transport.Event) {
	select {
	case x.beside <- e:
	default:
	}
}

// Next implements transport.Stream.
func (a *aside) Next() *transport.Event {
	a.x.NoteWaiting()
	select {
	case e := <-a.x.beside:
		a.x.idle.noteHeard()
		if e.Err == nil {
			e.Err = a.x.TakeRoom(int64(len(e.Message.Raw)))
		}
		return e
	case <-a.x.life.Done():
		return &transport.Event{Err: context.Cause(a.x.life)}
	}
}

// Head implements transport.Stream.
func (a *aside) Head() transport.Head { return a.x.head }

// Close implements transport.Stream: the GET stream stays open.
func (a *aside) Close() {}

// Finish implements transport.Stream.
func (a *aside) Finish() {}
