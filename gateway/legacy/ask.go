package legacy

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"taskgate/gateway/endpoint"
	"taskgate/gateway/translate"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
	"taskgate/shim/dialect"
)

// The gateway asks clients of the initialize era with JSON-RPC requests of its own (protocol.md 7.4). The id of
// each names the question and the stored call, so that the answer, a POST of its own, finds it at any replica
// (H7).

// answerQuestion takes a client's response. A response to an unknown or settled question is accepted: answers
// and ends may cross (T36). The server is told of an invalid response. After an error the client may send the
// response again.
func (h *Handler) answerQuestion(ctx context.Context, s *session, p shim.Principal, msg jsonrpc.Message) error {
	call, key, ok := parseQuestionID(msg.ID)
	if !ok {
		return nil
	}
	answer := shim.Answer{Result: msg.Result}
	if msg.Error != nil {
		answer = shim.Answer{Error: &shim.RPCError{Code: msg.Error.Code, Message: msg.Error.Message, Data: msg.Error.Data}}
	}
	ctx, span := h.Telemetry.Answer(ctx, h.Name, string(call))
	defer span.End()
	err := h.Shim.Answer(ctx, s.askedPrincipal(call, p), h.Name, call, key, answer)
	if err != nil && !errors.Is(err, shim.ErrNotFound) { // unknown, foreign, or over
		return &wire.Failure{Code: mcp.CodeInternal, Message: "the answer cannot be taken just now", Status: http.StatusServiceUnavailable}
	}
	return nil
}

// waysToAsk says how the client can be asked during a call: on the stream of the call, or in its task.
func (q *request) waysToAsk(task bool) shim.Asking {
	if !mcp.MayRequireInput(q.msg.Method) || !mcp.MayBeAsked(q.state.Capabilities) || !task && !q.out.Streams() {
		return shim.AskNever
	}
	return shim.AskStream
}

// newAsker makes an asker on the stream of the request. stop ends it.
func (q *request) newAsker(ctx context.Context) (a *asker, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	a = newAsker(ctx, q.s, q.log.w.asked, askLine{
		ask:  q.log.askOnStream,
		over: func(m []byte) { _ = q.out.Send(m) }, // a client that is gone misses it
	})
	return a, func() {
		cancel()
		a.work.Wait()
	}
}

// callAsker is the stream of a call on which the client can be asked. A client that goes before it answers may
// come back to the stream if that can be resumed; otherwise the server is told.
type callAsker struct {
	*endpoint.Sink
	asks *asker
	q    *request
}

var _ shim.Asker = callAsker{}

// Ask sends questions on the stream of the call, which can be resumed from then on: it is the only stream that
// asks them (X5). They wait while the store is away: it could take the answer only later, and a question
// outside of the log would be asked again elsewhere. The store may have forgotten a question that was asked, so
// a client that has gone is asked again once it resumes the stream.
func (a callAsker) Ask(call shim.ID, questions []shim.Question) {
	a.asks.addQuestions(call, questions, a.q.log.client.Err() != nil)
	if a.q.log.client.Err() != nil { // it may have gone just now
		a.refuseOpen()
	}
}

// refuseOpen answers all open questions in place of a client that has gone, and cannot come back for the answer.
func (a callAsker) refuseOpen() {
	if a.q.log.on.Load() {
		return
	}
	open := a.asks.giveUp()
	a.q.s.table.outlive(func() {
		ctx, cancel := a.q.s.table.withPatience(context.Background())
		defer cancel()
		for _, question := range open {
			if _, _, shown := shim.ReadShownKey(question.Key); shown {
				continue // another call may show it
			}
			// If this fails, the questions time out.
			_ = a.q.h.Shim.Answer(ctx, a.q.principal, a.q.h.Name, question.call, question.Key, shim.Unanswered(question.Question, "the client has gone"))
		}
	})
}

// Withdrawn takes questions back.
func (a callAsker) Withdrawn(call shim.ID, keys []string) { a.asks.withdrawQuestions(call, keys) }

// Completed passes on that the user is done with a page (protocol.md 7.4). The id is the server's own, which
// the client was given.
func (a callAsker) Completed(params json.RawMessage) {
	_ = a.q.out.Notify(mcp.NotifyElicitationComplete, translate.Unrelated(params))
}

// AskSession asks the client of a session what its server asks without naming a call. With onCalls the session's calls
// show the question. Otherwise it is asked on the GET stream of a legacy client, and shim.ErrNoAsk says that the client
// has neither an open one nor one to come back to.
func (h *Handler) AskSession(ctx context.Context, from shim.Session, q shim.Question, checkpoint json.RawMessage, onCalls bool) error {
	c := shim.Call{
		Upstream: h.Name, Principal: shim.Principal{Subject: from.Principal}, Origin: dialect.OriginExt,
		Request: shim.Request{Method: q.Method, Session: from}, Asking: shim.AskStream,
	}
	if !from.Shared { // a modern client
		_, err := h.Shim.AskSession(forward.Carry(context.Background(), ctx), c, checkpoint, func(shim.ID, bool) {})
		return err
	}
	s := h.Sessions.pinSession(from.Key)
	if err := h.mayAskSession(ctx, s, q, onCalls); err != nil {
		s.endUse()
		return err
	}
	life, end := context.WithCancelCause(forward.Carry(s.ctx, ctx)) // outlives the request of the server
	c.Principal, c.Origin, c.Request.Session = s.owner(), dialect.OriginLegacy, s.upstreamSession(ctx)
	id, err := h.Shim.AskSession(life, c, checkpoint, func(id shim.ID, over bool) {
		if over {
			s.settleSessionQuestion(id)
		}
		end(nil)
		s.endUse()
	})
	if err != nil {
		end(nil)
		s.endUse()
		return err
	}
	if onCalls {
		return nil
	}
	if err := s.updateState(ctx, func(st sessionState) (sessionState, error) { return st.withSessionQuestions([]shim.ID{id}, nil) }); err != nil {
		end(shim.ErrCancelled) // the question is on no stream; this answers the server
	}
	return nil
}

// mayAskSession returns why the client of a session cannot be asked a question now; nil if it can.
func (h *Handler) mayAskSession(ctx context.Context, s *session, q shim.Question, onCalls bool) error {
	st, err := s.loadState(ctx)
	switch able := (shim.Session{Capabilities: translate.Answerable(st.Capabilities)}); {
	case errors.Is(err, errNoSession):
		return shim.ErrNoAsk
	case err != nil:
		return err
	case st.Upstream != h.Name, !reading.MayAsk(able, q.Method, q.Params):
		return shim.ErrNoAsk
	case onCalls:
		return nil
	case !s.isAttached() && !s.listen.isActive() && !s.isElsewhere(ctx):
		return shim.ErrNoAsk
	case len(st.SessionQuestions) >= mostSessionQuestions:
		return errManySessionQuestions
	}
	return nil
}
