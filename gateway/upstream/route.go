package upstream

import (
	"context"
	"slices"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// router finds out whom progress and questions on the GET stream of a session are for. Servers
// may ask there (X4), and those built on the TypeScript SDK do, unless their tool names the request
// that it asks for. Such a question does not say which call it belongs to: it is put to the caller of
// the session's newest call, or else to the client of the session (design.md 0.16). The session owns
// the router; mu guards the calls.
type router struct {
	s         *session
	questions sessionQuestions

	mu    sync.Mutex
	calls []*exchange          // in flight and can be asked, the oldest first
	told  map[string]*exchange // in flight, by the token of their progress
}

// follow and unfollow keep the calls that wait for progress.
func (r *router) follow(token string, x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.told == nil {
		r.told = map[string]*exchange{}
	}
	r.told[token] = x
}

func (r *router) unfollow(token string, x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.told[token] == x {
		delete(r.told, token)
	}
}

// progressed hands progress that has come on the GET stream to the call that has its token.
// It belongs on the stream of the call (X4), but clients go by the token alone, and mcp-go
// 1.2.1 says it on whichever of the two streams is ready.
func (r *router) progressed(params []byte) {
	token, _ := jsonrpc.GetString(params, mcp.MetaProgressToken)
	r.mu.Lock()
	x := r.told[token]
	r.mu.Unlock()
	if x == nil {
		return
	}
	x.rec.tell(func() {
		if !x.rec.over {
			x.idle.touch()
			x.sink.Progress(progressOf(params))
		}
	})
}

// add and remove keep the list of the calls in flight that can be asked.
func (r *router) add(x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, x)
}

func (r *router) remove(x *exchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = slices.DeleteFunc(slices.Clone(r.calls), func(other *exchange) bool { return other == x })
}

// newest are those calls, the newest first.
func (r *router) newest() []*exchange {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := slices.Clone(r.calls)
	slices.Reverse(calls)
	return calls
}

// candidates are the calls that a request of the server may be for: the one whose task it
// names (L31), and all of them, the newest first, where it names none of theirs.
func (r *router) candidates(m jsonrpc.Message) []*exchange {
	calls := r.newest()
	if id := related(m.Params); id != "" {
		for _, x := range calls {
			if x.task.id() == id {
				return []*exchange{x}
			}
		}
	}
	return calls
}

// askCall puts a request of the server to the newest call whose client declared the kind and
// that may ask more. If there is none, it returns the refusal (protocol.md 7.4).
func (r *router) askCall(m jsonrpc.Message) (refused *jsonrpc.Error) {
	refused = notSupported(mcp.CodeMethodNotFound, m.Method)
	for _, x := range r.candidates(m) {
		if refused = x.asking.add(m, true); refused == nil {
			return nil
		}
	}
	return refused
}

// cancelled hears that the server withdraws one of its requests, in a session of that id.
func (r *router) cancelled(session string, params []byte) {
	raw, _ := jsonrpc.Get(params, "requestId")
	for _, x := range r.newest() {
		if x.asking.cancelled(raw) {
			return
		}
	}
	if id, err := jsonrpc.ParseID(raw); err == nil {
		r.questions.withdraw(sessionQuestionKey{session, id.Key()})
	}
}

// completed hands on that an elicitation by URL is complete, where nobody listens in
// the session: the newest call has the stream that is left (X5). Not every Sink
// is a shim.Completer, since few callers can be told: only a legacy client's are.
func (r *router) completed(params []byte) {
	for _, x := range r.newest() {
		c, ok := x.sink.(shim.Completer)
		if v, _ := jsonrpc.Get(x.caller.Capabilities, "elicitation", "url"); ok && jsonrpc.IsObject(v) {
			c.Completed(params)
			return
		}
	}
}

// ask finds out whom to ask what has come on the GET stream x: the newest call here, or
// else the client of the session. The roots are those of the client: a call that ends does not
// end that question.
func (r *router) ask(ctx context.Context, x *exchange, m jsonrpc.Message) error {
	s := r.s
	client := s.t.askSession.Load() != nil && s.from.Shared && s.from.Key != ""
	refused := notSupported(mcp.CodeMethodNotFound, m.Method)
	if !client || m.Method != mcp.MethodRootsList {
		if refused = r.askCall(m); refused == nil {
			return nil
		}
	}
	if refused.Code == mcp.CodeInternal || !client {
		return x.respond(ctx, jsonrpc.AppendError(nil, m.ID, refused)) // a call here asks too much, or there is nobody else
	}
	if code, ok := may(s.from, m.Method, m.Params); !ok {
		return x.respond(ctx, refusal(m.ID, code, m.Method))
	}
	k := sessionQuestionKey{x.to.session, m.ID.Key()}
	if !r.questions.add(k) {
		return x.respond(ctx, notPut(m.ID, "too many questions wait that belong to no call"))
	}
	p := pending{ID: []byte(m.ID.Raw()), Method: m.Method, Params: raw(m.Params), OnGET: true}
	s.pin()
	if !s.t.work.Go(ctx, func(ctx context.Context) {
		defer s.release()
		s.askClient(ctx, x.to, k, m.ID, p)
	}) {
		r.questions.forget(k)
		s.release()
		return x.respond(ctx, notPut(m.ID, "the gateway is shutting down"))
	}
	return nil
}
