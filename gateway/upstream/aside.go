package upstream

import (
	"context"
	"slices"
	"sync"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Servers may also ask on the GET stream of a session (X4), and those built on the
// TypeScript SDK do, unless their tool names the request that it asks for. Such a
// question does not say which call it belongs to: it is put to the caller of the
// session's newest call (design.md 0.16).

// asides are the questions that came to a call on the GET stream. They are asked by a
// goroutine of their own, since that of the call reads the call's stream; it takes
// turns with the other, as a Sink takes one Ask at a time.
type asides struct {
	x    *exchange
	ctx  context.Context // the call's, and over with its answer
	end  context.CancelCauseFunc
	work sync.WaitGroup

	mu       sync.Mutex
	waiting  []pending               // not put to the client yet
	asked    []pending               // those of the Ask under way
	gone     map[string]bool         // ids of those that the server has withdrawn
	withdraw context.CancelCauseFunc // ends the Ask under way
	busy     bool                    // the goroutine is there
	over     bool
}

// attend has the call hear what the server asks on the GET stream of the session,
// which is opened if it is not. The function that it returns ends that; whatever the
// server still asks then is refused, or left to whoever goes on with the call.
func (x *exchange) attend(ctx context.Context) func() {
	if !x.asks || !askable(x.caller) {
		return func() {}
	}
	held := x.to.session != "" && x.ses.attend(ctx)
	if !held && x.task == nil {
		return func() {}
	}
	x.turn = make(chan struct{}, 1)
	a := &asides{x: x}
	a.ctx, a.end = context.WithCancelCause(ctx)
	x.aside = a
	x.ses.get.enter(x)
	return func() {
		x.ses.get.quit(x)
		a.quit(ctx)
		if held {
			x.ses.leave(linger)
		}
	}
}

// takeOver are the questions that a checkpoint has open, without those that came on
// the GET stream: they are asked as they were. So are those of a server's task, whose
// stream may not open before they are answered.
func (x *exchange) takeOver() []pending {
	var own []pending
	for _, p := range x.state.Pending {
		if !p.Aside && x.task == nil || x.aside == nil || !x.aside.take(p) {
			own = append(own, p)
		}
	}
	return own
}

// take has a question asked soon. It reports false if the call is over.
func (a *asides) take(p pending) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	a.waiting = append(a.waiting, p)
	if !a.busy {
		a.busy = true
		a.work.Go(a.run)
	}
	return true
}

// run asks what there is, together what comes together (design.md 0.18).
func (a *asides) run() {
	for {
		_ = pause(a.ctx, gather) // an end is seen by next
		asked, ctx := a.next()
		if asked == nil {
			return
		}
		a.ask(ctx, asked)
	}
}

func (a *asides) next() ([]pending, context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked, a.gone, a.withdraw = nil, nil, nil
	if a.over || a.ctx.Err() != nil || len(a.waiting) == 0 {
		a.busy = false
		return nil, nil
	}
	ctx, withdraw := context.WithCancelCause(a.ctx)
	a.asked, a.waiting = a.waiting, nil
	a.gone, a.withdraw = make(map[string]bool), withdraw
	return a.asked, ctx
}

// ask puts questions to the client and posts the answers.
func (a *asides) ask(ctx context.Context, asked []pending) {
	x := a.x
	x.idle.pause()
	defer x.idle.resume()
	x.amend(func(c *checkpoint) { c.open(asked) })
	x.save(ctx)
	answers, err := x.put(ctx, asked)
	gone := a.answered()
	if err != nil && detached(a.ctx) {
		return // whoever goes on with the call asks again, under the same keys
	}
	x.amend(func(c *checkpoint) { c.close(asked) })
	asked = slices.DeleteFunc(slices.Clone(asked), func(p pending) bool {
		return gone[string(p.ID)]
	})
	a.post(asked, answers, err)
	if a.ctx.Err() == nil {
		x.save(a.ctx)
	}
}

// answered ends the Ask under way: what the server withdraws from now on is late.
func (a *asides) answered() map[string]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.withdraw(nil)
	gone := a.gone
	a.gone = make(map[string]bool)
	return gone
}

// post answers the server, which waits for that even if the call is over by now.
func (a *asides) post(asked []pending, answers []shim.Answer, failed error) {
	ctx, cancel := a.ctx, context.CancelFunc(func() {})
	if ctx.Err() != nil {
		ctx, cancel = aside(ctx, cancelTimeout)
	}
	defer cancel()
	for i, p := range asked {
		body, ok := responseTo(p, answers, i, failed)
		if !ok {
			continue
		}
		if err := a.x.h.answer(ctx, ctx, a.x.to, body); err != nil {
			a.x.h.log.Debug("answer to the server was not delivered", "err", err)
		}
	}
}

// cancelled takes note that the server no longer waits for the answer to the request that
// it calls so, and reports whether that is one of these.
func (a *asides) cancelled(id []byte) bool {
	is := func(p pending) bool { return string(p.ID) == string(id) }
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.IndexFunc(a.waiting, is); i >= 0 {
		withdrawn := a.waiting[i : i+1]
		a.x.amend(func(c *checkpoint) { c.close(withdrawn) }) // it may be one that was taken over
		a.waiting = slices.Delete(slices.Clone(a.waiting), i, i+1)
		return true
	}
	i := slices.IndexFunc(a.asked, is)
	if i < 0 {
		return false
	}
	if a.gone[string(a.asked[i].ID)] = true; len(a.gone) == len(a.asked) {
		a.withdraw(errWithdrawn)
	}
	return true
}

// quit ends what is asked. A call that is let go of takes it along in its checkpoint.
func (a *asides) quit(ctx context.Context) {
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
	a.end(errWithdrawn)
	a.work.Wait()
	switch {
	case len(a.waiting) == 0:
	case detached(ctx):
		a.x.amend(func(c *checkpoint) { c.open(a.waiting) })
		a.x.save(ctx)
	default:
		a.post(a.waiting, nil, errWithdrawn)
	}
}

// askable reports whether a client declared that it can be asked anything.
func askable(s shim.Session) bool {
	for _, kind := range []string{"elicitation", "sampling", "roots"} {
		if v, _ := jsonrpc.Get(s.Capabilities, kind); jsonrpc.IsObject(v) {
			return true
		}
	}
	return false
}

// enter and quit keep the list of the calls in flight that can be asked.
func (st *standing) enter(x *exchange) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.calls = append(st.calls, x)
}

func (st *standing) quit(x *exchange) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.calls = slices.DeleteFunc(slices.Clone(st.calls), func(other *exchange) bool { return other == x })
}

// newest are those calls, the newest first.
func (st *standing) newest() []*exchange {
	st.mu.Lock()
	defer st.mu.Unlock()
	calls := slices.Clone(st.calls)
	slices.Reverse(calls)
	return calls
}

// meant are the calls that a request of the server may be for: the one whose task it
// names (L31), and all of them, the newest first, where it names none of theirs.
func (st *standing) meant(m jsonrpc.Message) []*exchange {
	calls := st.newest()
	if id := related(m.Params); id != "" {
		for _, x := range calls {
			if x.task.id() == id {
				return []*exchange{x}
			}
		}
	}
	return calls
}

// ask puts a request of the server to the newest call whose client declared the kind and
// that may ask more. If there is none, it returns the refusal (protocol.md 7.4).
func (st *standing) ask(m jsonrpc.Message) (refused *jsonrpc.Error) {
	refused = notSupported(mcp.CodeMethodNotFound, m.Method)
	for _, x := range st.meant(m) {
		code, ok := may(x.caller, m.Method, m.Params)
		if !ok {
			refused = notSupported(code, m.Method)
			continue
		}
		if why := x.tooMuch(m); why != "" {
			refused = overLimit(why)
			continue
		}
		p := x.question(m)
		p.Aside = true
		if x.aside.take(p) {
			return nil
		}
	}
	return refused
}

// cancelled hears that the server withdraws one of its requests, in a session of that id.
func (st *standing) cancelled(session string, params []byte) {
	raw, _ := jsonrpc.Get(params, "requestId")
	for _, x := range st.newest() {
		if x.aside.cancelled(raw) {
			return
		}
	}
	if id, err := jsonrpc.ParseID(raw); err == nil {
		st.lone.withdraw(loneKey{session, id.Key()})
	}
}

// completed hands on that an elicitation by URL is complete, where nobody listens in
// the session: the newest call has the stream that is left (X5).
func (st *standing) completed(params []byte) {
	for _, x := range st.newest() {
		c, ok := x.sink.(shim.Completer)
		if v, _ := jsonrpc.Get(x.caller.Capabilities, "elicitation", "url"); ok && jsonrpc.IsObject(v) {
			c.Completed(params)
			return
		}
	}
}
