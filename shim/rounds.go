package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
)

// This file answers servers that ask with their result: the call ends with questions,
// and is made again with the answers (protocol.md 2.7). Between two rounds nothing is on
// its way, so that another replica can go on from the record.

// mostRounds bounds how often one call is made again with answers.
const mostRounds = 100

// How long to wait before a server is called again that asked for nothing but that.
const (
	roundFirst = time.Second
	roundMost  = 30 * time.Second
)

// round is what a server waits for before it goes on, as it is stored.
type round struct {
	N int `json:"n"` // how many there have been, with this one
	// State is what the server wants back, as it spelt it; nil for nothing.
	State json.RawMessage `json:"state,omitempty"`
	// Again says that it is called again once they are settled, without the answers.
	Again bool `json:"again,omitempty"`
	// Heard is the furthest progress that the server has told by then, nil for none.
	Heard *float64 `json:"heard,omitempty"`
	// Questions are what it asks, without the contents, which are in the mailbox.
	Questions []asked `json:"questions,omitempty"`
	// noted says that the record has the round, or may have it. Until then it must not
	// go into the record by itself: who adopted the call would ask without contents.
	noted bool
}

// asked is one question of a round.
type asked struct {
	Name   string `json:"name"` // what the server calls it
	Key    string `json:"key"`  // what we do: its names may come again, ours may not (T39)
	Method string `json:"method"`
}

// rounds makes the upstream call of a run, and makes it again with answers where the server
// asks with its result. The run owns it. It belongs to the goroutine of the upstream call;
// run.mu guards open besides, which others read, and what was heard.
type rounds struct {
	run *run
	// heard is the furthest progress that the server has told, and before what that was when
	// it last asked; nil for none.
	heard, before *float64
	// open is what the server's last answer asked for, while that has no retry yet.
	open *round
	// away: the call has given its slot back, since nothing of it is at the server.
	away bool
}

// sendRounds makes the upstream call, and makes it again with answers as long as the server
// asks for them. What it returns when its context has ended is the context's cause,
// so that every caller sees why.
func (rs *rounds) sendRounds() (Reply, error) {
	r := rs.run
	n, now := 0, []Question(nil)
	for retry := (*Retry)(nil); ; {
		if rs.open != nil {
			n = rs.open.N
			var refusal *RPCError
			var err error
			rs.leavePlace()
			retry, refusal, err = rs.answerRound(now)
			if err == nil && refusal == nil {
				err = rs.takePlace()
			}
			if err != nil || refusal != nil {
				return Reply{Error: refusal}, r.findCause(err)
			}
		}
		reply, err := rs.sendOnce(retry)
		if err != nil || !rs.wantsRetry(&reply) {
			return reply, r.findCause(err)
		}
		if n >= mostRounds {
			return Reply{Error: &RPCError{Code: codeInternal, Message: "the server asked for input too often"}}, nil
		}
		if why := r.policy.Questions.Refuse(r.box.made, 0, 0, reply.Round.Questions...); why != "" {
			return Reply{Error: &RPCError{Code: codeInternal, Message: "the server asked for more than it may: " + why}}, nil
		}
		now = rs.beginRound(n+1, reply.Round)
	}
}

// sendOnce makes the upstream call once. Where it was not sent because what it needs
// of the store could not be had, it is made again: a task waits for the store until
// its own time is over, a caller who blocks for as long as for any other answer of it.
func (rs *rounds) sendOnce(retry *Retry) (Reply, error) {
	r := rs.run
	r.sent.Store(true)
	begin := time.Now()
	for d := retryFirst; ; d = min(2*d, retryMost) {
		reply, err := r.srv.Upstream.Call(r.observed.contextOfRun(), r.upstreamRequest(retry), r)
		if r.policy.Grace == GraceAuto && err == nil && reply.Result != nil {
			r.srv.graces.learnGrace(r.call.Request.Name, time.Since(begin), reply.Result)
		}
		if up, ok := errors.AsType[*UpstreamError](err); !ok || !up.Unsent || !errors.Is(err, ErrUnavailable) {
			return reply, err
		}
		next := spreadPause(d)
		if !r.hasRecord() {
			next = min(next, r.core.storeTimeout-time.Since(begin))
		}
		if next <= 0 || work.Pause(r.ctx, next) != nil {
			return reply, err
		}
	}
}

// upstreamRequest is what the upstream client is asked for: the client's request, with the answers to what
// the server asked for (nil for none), and how long it may take.
func (r *run) upstreamRequest(retry *Retry) Request {
	req := r.call.Request
	req.Rounds, req.Limits, req.Retry = r.call.Asking != AskNever, r.policy.Questions, retry
	if req.Method == callTool {
		req.Within = r.policy.Timeout
	}
	return req
}

// wantsRetry reports whether a reply is one to ask the caller for and to make the call
// again. Where nothing is asked, it does not matter whether the caller can be. A caller with
// a stream of its own gets an error that says what is to be opened first: it knows that error
// (protocol.md 7.4).
func (rs *rounds) wantsRetry(reply *Reply) bool {
	switch {
	case reply.Round == nil:
		return false
	case !reply.InputRequired:
		return rs.run.call.Asking == AskPark
	case rs.relaysQuestions():
		return false
	}
	return rs.run.call.Asking != AskNever || len(reply.Round.Questions) == 0
}

// relaysQuestions reports whether the questions go back to the caller as they came, who
// answers them with another call: it can, and there is no record. From then on none
// is made.
func (rs *rounds) relaysQuestions() bool {
	r := rs.run
	r.mu.Lock()
	defer r.mu.Unlock()
	r.creation.awaitAttempt()
	if !r.call.Request.Relay || r.record != nil {
		return false
	}
	r.ended = true
	return true
}

// beginRound opens a round, and gives the questions of the server keys of their own.
func (rs *rounds) beginRound(n int, from *Round) []Question {
	r := rs.run
	r.mu.Lock()
	defer r.mu.Unlock()
	rs.before = rs.heard
	rs.open = &round{N: n, State: from.State, Again: from.Again, Heard: rs.heard}
	questions := make([]Question, len(from.Questions))
	for i, q := range from.Questions {
		r.box.made++
		key := fmt.Sprintf("q%d", r.box.made)
		rs.open.Questions = append(rs.open.Questions, asked{Name: q.Key, Key: key, Method: q.Method})
		questions[i] = Question{Key: key, Method: q.Method, Params: q.Params}
	}
	return questions
}

// goOn takes over the open round of the runner before, if there was one.
func (rs *rounds) goOn(from *round) {
	if from != nil {
		rs.heard, rs.before = from.Heard, from.Heard
	}
	rs.open = from
	rs.noteOpen()
}

// repeatsProgress takes a progress notification, and reports whether it says what was said in an
// earlier round: a server that is called again begins from the start. run.mu is held.
func (rs *rounds) repeatsProgress(p Progress) bool {
	if rs.heard == nil || p.Progress > *rs.heard {
		rs.heard = &p.Progress
	}
	return rs.before != nil && p.Progress <= *rs.before
}

// answerRound asks the questions of the open round and makes the retry of the answers. Questions
// that the runner before this one asked are in the record, and are not given again.
// The retry may be sent once it has returned: until then the record has the round.
func (rs *rounds) answerRound(questions []Question) (*Retry, *RPCError, error) {
	r, rd := rs.run, *rs.open
	if len(rd.Questions) == 0 {
		return &Retry{State: rd.State}, nil, rs.waitBetween(rd.N)
	}
	if questions == nil {
		for _, a := range rd.Questions {
			questions = append(questions, Question{Key: a.Key, Method: a.Method})
		}
	}
	if rd.Again && rd.N > 1 && work.Pause(r.ctx, pauseFor(rd.N-1)) != nil { // a client may agree by itself
		return nil, nil, context.Cause(r.ctx)
	}
	answers, err := r.Ask(r.ctx, questions...)
	if err != nil {
		if r.ctx.Err() == nil && r.core.life.ctx.Err() == nil {
			return nil, &RPCError{Code: codeInternal, Message: "the server asked for input, and the client could not be asked"}, nil
		}
		return nil, nil, err
	}
	if rd.Again {
		return &Retry{}, checkAgreed(answers), nil
	}
	retry := &Retry{State: rd.State, Answers: make(map[string]json.RawMessage, len(answers))}
	for i, a := range answers {
		// A retry has results and nothing else: an error can only be spelt where
		// the method has a result that says so (protocol.md H3).
		if a.Error != nil {
			a = Unanswered(questions[i], "the client did not answer what the server needs to know")
		}
		if a.Error != nil {
			return nil, a.Error, nil
		}
		retry.Answers[rd.Questions[i].Name] = a.Result
	}
	return retry, nil, nil
}

// checkAgreed is nil if the user has agreed to everything that was asked.
func checkAgreed(answers []Answer) *RPCError {
	for _, a := range answers {
		if action, _ := jsonrpc.GetString(a.Result, "action"); a.Error != nil || action != "accept" {
			return &RPCError{Code: codeInternal, Message: "the server wants a page to be opened first, and the user did not agree"}
		}
	}
	return nil
}

// pauseFor is how long to wait before the n-th time that a server is called again.
func pauseFor(n int) time.Duration { return min(roundFirst<<min(n-1, 5), roundMost) }

// waitBetween waits before a server is called again that asked for nothing else: it
// sheds load. The record says so, and before it returns that the retry may be sent.
func (rs *rounds) waitBetween(n int) error {
	if err := rs.persistRound(); err != nil {
		return err
	}
	if work.Pause(rs.run.ctx, pauseFor(n)) != nil {
		return context.Cause(rs.run.ctx)
	}
	if err := rs.takePlace(); err != nil {
		return err
	}
	rs.endRound()
	return rs.persistRound()
}

// leavePlace gives the slot back while a round is open: nothing of the call is at the server.
func (rs *rounds) leavePlace() {
	rs.run.ticket.dropSlots()
	rs.away = true
}

// takePlace waits for a slot again. It is called while the record has the round and its answers:
// whoever adopts the call then goes on from there.
func (rs *rounds) takePlace() error {
	r := rs.run
	if !rs.away {
		return nil
	}
	rs.away = false
	if r.call.Request.Method != callTool {
		return nil
	}
	var err error
	if r.ticket, err = r.srv.reserveSlots(r.call.Request.Name, r.policy, true); err != nil {
		return err
	}
	return r.takeTurn()
}

// persistRound records whether a round is open, where there is a record. That it is not
// any more is as good as that the retry was sent, and must outlast a failover.
func (rs *rounds) persistRound() error {
	r := rs.run
	if !r.hasRecord() {
		return nil
	}
	r.pieces.drainPieces(r.ctx)
	r.mu.Lock()
	rs.noteOpen()
	r.mu.Unlock()
	return r.record.persistChange(r.ctx, func() Change { return Change{Call: r.callRecord(true), Durable: rs.open == nil} })
}

// noteOpen says that the record is about to have the open round. run.mu is held.
func (rs *rounds) noteOpen() {
	if rs.open != nil {
		rs.open.noted = true
	}
}

// recordedRound is the open round, if the record may have it.
func (rs *rounds) recordedRound() *round {
	if rs.open == nil || !rs.open.noted {
		return nil
	}
	return rs.open
}

// endRound closes the round, if there is one, and returns what is to be recorded of
// the call then.
func (rs *rounds) endRound() json.RawMessage {
	rs.run.mu.Lock()
	defer rs.run.mu.Unlock()
	if rs.open == nil {
		return nil
	}
	rs.open = nil
	return rs.run.callRecord(true)
}
