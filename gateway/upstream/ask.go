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
	in.pump(x.h.cfg.MaxEvent)
	// This goroutine now waits for long, and keeps the stack that it has grown to. So
	// everything but the waiting is done on another one.
	var asked []pending
	apart(func() { asked = x.toAsk(ctx, in) })
	if len(asked) == 0 {
		return nil // the server has gone on without an answer
	}
	askCtx, withdraw := context.WithCancelCause(ctx)
	defer withdraw(nil)
	gone := make(map[string]bool)
	// The server may cancel them, answer the call, or be gone. What it says else is
	// handled afterwards.
	in.ahead.show(func(held []item) {
		if x.over(held, asked, gone) {
			withdraw(errWithdrawn)
		}
	})
	answers, err := x.put(askCtx, asked)
	in.ahead.show(nil)
	if cause := ended(ctx); cause != nil {
		return cause
	}
	apart(func() { err = x.settle(ctx, asked, gone, answers, err) })
	return err
}

// toAsk takes the questions that are to be asked now, and those that come in the next
// moment, and records that they are. There are none if the server waits for none of
// them any more.
func (x *exchange) toAsk(ctx context.Context, in *inbound) []pending {
	x.gather(ctx, in)
	asked := x.queue
	x.queue = nil
	over := false
	in.ahead.show(func(held []item) { over = x.over(held, asked, make(map[string]bool)) })
	in.ahead.show(nil)
	if over {
		x.amend(func(c *checkpoint) { c.close(asked) })
		return nil
	}
	x.amend(func(c *checkpoint) { c.open(asked) })
	x.handOver(ctx)
	return asked
}

// settle gives the server the answers and records that it has them.
func (x *exchange) settle(ctx context.Context, asked []pending, gone map[string]bool, answers []shim.Answer, failed error) error {
	err := x.postAnswers(ctx, asked, gone, answers, failed)
	if err != nil && detached(ctx) {
		return err // the server still waits, and whoever goes on has to know
	}
	x.amend(func(c *checkpoint) { c.close(asked) })
	x.handOver(ctx)
	return err
}

// apart runs f on a goroutine of its own and waits for its end.
func apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
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
	for i := range asked {
		q, p := &qs[i], &asked[i]
		q.Key, q.Method, q.Params = p.Key, p.Method, p.Params
	}
	return qs
}

// gather handles what arrives shortly after a question; further questions join
// the queue. An answer, or the end of the stream, is left for later.
func (x *exchange) gather(ctx context.Context, in *inbound) {
	t := time.NewTimer(gather)
	defer t.Stop()
	var it item
	for in.ahead.next(&it, ctx.Done(), t.C) {
		if !x.early(ctx, it) {
			in.ahead.back(it)
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
	x.mark(&it)
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

// over looks through what is held of the stream for withdrawn questions and reports
// whether none is left to be answered: the server does not wait any more.
func (x *exchange) over(held []item, asked []pending, gone map[string]bool) bool {
	for _, it := range held {
		if it.err != nil && !x.state.resumable() {
			return true
		}
		for _, m := range it.msgs {
			if (m.Kind == jsonrpc.Result || m.Kind == jsonrpc.ErrorResponse) && x.answers(m) {
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
