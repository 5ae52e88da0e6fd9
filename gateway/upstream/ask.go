package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// gather is how long further questions are waited for after the first, so that
// they reach a client together (design.md 0.18).
const gather = 50 * time.Millisecond

// request takes a request of the server: a ping is answered at once, a question
// that may be asked is queued, everything else refused.
func (x *exchange) request(ctx context.Context, m jsonrpc.Message) error {
	if x.to.era != mcp.Legacy {
		x.h.log.Warn("modern server sent a request, which it must not", "method", m.Method)
		return nil
	}
	if m.Method == mcp.MethodPing {
		return x.respond(ctx, jsonrpc.AppendResult(nil, m.ID, nil))
	}
	if !x.ses.claim(m.ID) {
		return nil // replayed: it has been asked, by this call or another
	}
	if code, ok := may(x.caller, m.Method, m.Params); !ok {
		return x.respond(ctx, refusal(m.ID, code, m.Method))
	}
	if why := x.tooMuch(m); why != "" {
		return x.respond(ctx, jsonrpc.AppendError(nil, m.ID, overLimit(why)))
	}
	// The event is not heard again by whoever goes on from a checkpoint behind it, so
	// the question is pending from now on, and not only once it is put to the client.
	q := x.question(m)
	x.amend(func(c *checkpoint) { c.open([]pending{q}) })
	x.queue = append(x.queue, q)
	return nil
}

// question gives a request of the server its key.
func (x *exchange) question(m jsonrpc.Message) pending {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.state.Asked++
	return pending{
		ID: []byte(m.ID.Raw()), Key: fmt.Sprintf("%s-q%d", x.state.ID, x.state.Asked),
		Method: m.Method, Params: raw(unrelated(m.Params)),
	}
}

func refusal(id jsonrpc.ID, code int64, method string) []byte {
	return jsonrpc.AppendError(nil, id, notSupported(code, method))
}

func notSupported(code int64, method string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: code, Message: "the client does not support " + method}
}

// ask puts the queued questions, and those that come in the next moment, to the
// client and posts the answers. Meanwhile the stream is read on, so that it is
// noticed if the server no longer waits.
func (x *exchange) ask(ctx context.Context, in *inbound) error {
	x.idle.pause()
	defer x.idle.resume()
	in.pump()
	x.gather(ctx, in)
	asked := x.queue
	x.queue = nil
	if x.over(asked, map[string]bool{}) {
		x.amend(func(c *checkpoint) { c.close(asked) })
		return nil // the server has gone on without an answer
	}
	x.amend(func(c *checkpoint) { c.open(asked) })
	x.handOver(ctx)

	askCtx, withdraw := context.WithCancelCause(ctx)
	defer withdraw(nil)
	watch := x.watch(askCtx, in, asked, func() { withdraw(errWithdrawn) })
	answers, err := x.put(askCtx, asked)
	withdraw(nil)
	gone := watch()
	if cause := ended(ctx); cause != nil {
		return cause
	}
	err = x.postAnswers(ctx, asked, gone, answers, err)
	if err != nil && detached(ctx) {
		return err // the server still waits, and whoever goes on has to know
	}
	x.amend(func(c *checkpoint) { c.close(asked) })
	x.handOver(ctx)
	return err
}

// unanswered are the questions that the server waits for: those that were put to the
// client, and those that will be next.
func (x *exchange) unanswered() []pending {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.state.Pending)
}

var errWithdrawn = errors.New("the server no longer waits for an answer")

// put asks when nobody else does: a Sink takes one Ask at a time.
func (x *exchange) put(ctx context.Context, asked []pending) ([]shim.Answer, error) {
	if x.aside != nil {
		select {
		case x.turn <- struct{}{}:
			defer func() { <-x.turn }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return x.sink.Ask(ctx, questions(asked)...)
}

func questions(asked []pending) []shim.Question {
	qs := make([]shim.Question, len(asked))
	for i, p := range asked {
		qs[i] = shim.Question{Key: p.Key, Method: p.Method, Params: p.Params}
	}
	return qs
}

// gather handles what arrives shortly after a question; further questions join
// the queue. An answer, or the end of the stream, is left for later.
func (x *exchange) gather(ctx context.Context, in *inbound) {
	t := time.NewTimer(gather)
	defer t.Stop()
	for {
		select {
		case it := <-in.pumped:
			if !x.early(ctx, it) {
				x.backlog = append(x.backlog, it)
				return
			}
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// early handles an event without an answer in it, and reports whether it was
// one.
func (x *exchange) early(ctx context.Context, it item) bool {
	if it.err != nil {
		return false
	}
	for _, m := range it.msgs {
		if m.Kind == jsonrpc.Result || m.Kind == jsonrpc.ErrorResponse {
			return false
		}
	}
	x.mark(it)
	for _, m := range it.msgs {
		switch m.Kind {
		case jsonrpc.Request:
			if err := x.request(ctx, m); err != nil {
				x.h.log.Debug("answer to the server was not delivered", "err", err)
			}
		case jsonrpc.Notification:
			x.notification(m)
		}
	}
	return true
}

// watch reads the stream while questions are open and calls withdraw once the
// server waits for none of them: it cancelled them, answered the call, or is
// gone. What was read is handled afterwards, since the Sink is busy. The
// returned function ends the watch and says which questions were withdrawn.
func (x *exchange) watch(ctx context.Context, in *inbound, asked []pending, withdraw func()) func() map[string]bool {
	gone := make(map[string]bool)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !x.over(asked, gone) && !x.full() {
			select {
			case it := <-in.pumped:
				x.backlog = append(x.backlog, it)
			case <-ctx.Done():
				return
			}
		}
		if !x.full() {
			withdraw()
		}
	}()
	return func() map[string]bool {
		<-done
		x.over(asked, gone)
		return gone
	}
}

// over looks through the backlog for withdrawn questions and reports whether
// none is left to be answered.
func (x *exchange) over(asked []pending, gone map[string]bool) bool {
	for _, it := range x.backlog {
		if it.err != nil && !x.state.resumable() {
			return true
		}
		for _, m := range it.msgs {
			if (m.Kind == jsonrpc.Result || m.Kind == jsonrpc.ErrorResponse) && x.concludes(m) {
				return true
			}
			if m.Method == mcp.NotifyCancelled {
				id, _ := jsonrpc.Get(m.Params, "requestId")
				gone[string(id)] = true
			}
		}
	}
	for _, p := range asked {
		if !gone[string(p.ID)] {
			return false
		}
	}
	return true
}

// postAnswers gives the server what the client said. A question that was
// withdrawn gets no answer.
func (x *exchange) postAnswers(ctx context.Context, asked []pending, gone map[string]bool, answers []shim.Answer, failed error) error {
	if errors.Is(failed, context.Canceled) || errors.Is(failed, errWithdrawn) {
		return nil // withdrawn: ctx itself has not ended
	}
	for i, p := range asked {
		if gone[string(p.ID)] {
			continue
		}
		body, ok := responseTo(p, answers, i, failed)
		if !ok {
			continue
		}
		if err := x.respond(ctx, body); err != nil {
			return err
		}
	}
	return nil
}

// responseTo is the response to a question with the answer of that number, or without
// one if there are fewer. It reports false for a checkpoint of somebody else, with an id
// that is none.
func responseTo(p pending, answers []shim.Answer, i int, failed error) (body []byte, ok bool) {
	id, err := jsonrpc.ParseID(p.ID)
	if err != nil {
		return nil, false
	}
	var a shim.Answer
	if i < len(answers) {
		a = answers[i]
	}
	return response(id, p, a, failed), true
}

// response spells one answer as the JSON-RPC response that the server waits for.
func response(id jsonrpc.ID, p pending, a shim.Answer, failed error) []byte {
	switch {
	case errors.Is(failed, shim.ErrNoAsk):
		return refusal(id, mcp.CodeMethodNotFound, p.Method)
	case failed == nil && a.Error != nil:
		return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: a.Error.Code, Message: a.Error.Message, Data: a.Error.Data})
	case failed == nil && len(a.Result) > 0:
		return jsonrpc.AppendResult(nil, id, a.Result)
	}
	return jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: mcp.CodeInternal, Message: "the client could not be asked"})
}

// respond posts a response. The server blocks on it, so a broken connection is
// tried again: a second response to an id is ignored by its owner.
func (x *exchange) respond(ctx context.Context, body []byte) error {
	return x.h.answer(ctx, x.life, x.to, body)
}

// answer is respond: it is tried again while ctx lasts, each time under life.
func (h *HTTP) answer(ctx, life context.Context, to target, body []byte) error {
	var err error
	for try := range 3 {
		if try > 0 {
			if err := pause(ctx, firstRetry<<try); err != nil {
				return err
			}
		}
		if err = h.tellSoon(life, to, body); err == nil {
			return nil
		}
		if se, ok := err.(*statusError); ok && se.status < 500 && se.status != 429 {
			return answerRefused(se)
		}
		if errors.Is(err, errSlow) && ctx.Err() == nil {
			return fail(kindTimeout, "the server did not take the answer to its question", err)
		}
	}
	return err
}

func answerRefused(se *statusError) error {
	if se.lost() {
		return se.upstream() // not as proof of anything about the call, which runs
	}
	return protocolError(fmt.Sprintf("the server refused the answer to its question with HTTP status %d", se.status), se)
}
