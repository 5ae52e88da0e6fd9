package upstream

import (
	"context"
	"slices"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// sessionCalls are the calls in flight of one session, and what they share: the requests of the
// server that one of them has heard, and the stream on which the server asks without saying whom.
// Servers may ask there (X4), and those built on the TypeScript SDK do, unless their tool names the
// request that it asks for. Such a question is put to the caller of the newest call (design.md 0.16).
// The session owns it; mu guards what follows it.
type sessionCalls struct {
	stream asideStream

	mu      sync.Mutex
	calls   []*exchange          // in flight and can be asked, the oldest first
	told    map[string]*exchange // in flight, by the token of their progress
	claimed recent               // ids of the server's requests that were taken care of
}

// asideStream is the GET stream of a session, as its calls use it.
type asideStream interface {
	// needStream has the stream open until doneStream is called. opened is closed once the attempt to open it
	// has had its outcome; nil if the server is known to have no such stream.
	needStream(ctx context.Context) (opened <-chan struct{})
	doneStream()
	// awaitStream waits a moment for opened: what a server asks while there is no stream may be lost.
	awaitStream(ctx context.Context, opened <-chan struct{})
}

// claimRequest reports whether this request of the server is new to the session, and
// takes note of it: a resumed stream may repeat what another call has heard.
func (c *sessionCalls) claimRequest(id jsonrpc.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claimed.addKey(id.Key())
}

// disclaimRequest gives back what a call has claimed that was let go of before it had
// answers: if it comes back to this replica, with a checkpoint from before the
// questions, it hears them again.
func (c *sessionCalls) disclaimRequest(questions []pending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range questions {
		c.claimed.removeKey(q.requestID().Key())
	}
}

// forgetClaims begins a new session at the server, which may number its requests as the old one did.
func (c *sessionCalls) forgetClaims() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claimed = recent{}
}

// followProgress and unfollow keep the calls that wait for progress.
func (c *sessionCalls) followProgress(token string, x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told[token] = x
}

func (c *sessionCalls) unfollowProgress(token string, x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[token] == x {
		delete(c.told, token)
	}
}

// passProgress hands progress that has come on another stream to the call that has its token, and
// reports whether it is here. Progress belongs on the stream of the call (X4), but clients go by the
// token alone, and mcp-go 1.2.1 says it on whichever stream of the session is ready.
func (c *sessionCalls) passProgress(params []byte) bool {
	c.mu.Lock()
	x := c.told[tokenOf(params)]
	c.mu.Unlock()
	if x == nil {
		return false
	}
	x.rec.tellSink(func() {
		if !x.rec.over {
			x.idle.noteHeard()
			x.sink.Progress(progressOf(params))
		}
	})
	return true
}

// addCall and remove keep the list of the calls in flight that can be asked.
func (c *sessionCalls) addCall(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, x)
}

func (c *sessionCalls) removeCall(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = slices.DeleteFunc(slices.Clone(c.calls), func(other *exchange) bool { return other == x })
}

// newestFirst are those calls, the newest first.
func (c *sessionCalls) newestFirst() []*exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := slices.Clone(c.calls)
	slices.Reverse(calls)
	return calls
}

// callsFor are the calls that a request of the server may be for: the one whose task it
// names (L31), and all of them, the newest first, where it names none of theirs.
func (c *sessionCalls) callsFor(m jsonrpc.Message) []*exchange {
	calls := c.newestFirst()
	if id, _ := jsonrpc.GetString(m.Params, "_meta", mcp.MetaRelatedTask, "taskId"); id != "" {
		for _, x := range calls {
			if x.rec.taskID() == id {
				return []*exchange{x}
			}
		}
	}
	return calls
}

// askCall puts a request of the server to the newest call whose client declared the kind and
// that may ask more. If there is none, it returns the refusal (protocol.md 7.4).
func (c *sessionCalls) askCall(m jsonrpc.Message) (refused *jsonrpc.Error) {
	refused = notSupported(mcp.CodeMethodNotFound, m.Method)
	for _, x := range c.callsFor(m) {
		if refused = x.asking.addQuestion(m, true); refused == nil {
			return nil
		}
	}
	return refused
}

// passCancellation hears that the server withdraws its request of this id. It reports whether that was put
// to one of these calls.
func (c *sessionCalls) passCancellation(id []byte) bool {
	return slices.ContainsFunc(c.newestFirst(), func(x *exchange) bool { return x.asking.cancelQuestion(id) })
}

// passCompleted hands on that an elicitation by URL is complete, where nobody listens in
// the session, and reports whether there is a call to hear it: the newest one has the stream that is
// left (X5). Not every Sink is a shim.Completer, since few callers can be told: only a legacy client's are.
func (c *sessionCalls) passCompleted(params []byte) bool {
	for _, x := range c.newestFirst() {
		to, ok := x.sink.(shim.Completer)
		if v, _ := jsonrpc.Get(x.caller.Capabilities, "elicitation", "url"); ok && jsonrpc.IsObject(v) {
			to.Completed(params)
			return true
		}
	}
	return false
}

// recent is a set of the ids seen last: those of two times maxRecent at most.
type recent struct{ newer, older map[string]bool }

// maxRecent is how many request ids of a server a session remembers at least.
const maxRecent = 1024

func (r *recent) addKey(key string) bool {
	if r.newer[key] || r.older[key] {
		return false
	}
	if r.newer == nil || len(r.newer) >= maxRecent {
		r.newer, r.older = make(map[string]bool), r.newer
	}
	r.newer[key] = true
	return true
}

func (r *recent) removeKey(key string) {
	delete(r.newer, key)
	delete(r.older, key)
}
