package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// This file answers servers that ask with their result: the call ends with questions, and is made again
// with the answers (protocol.md 2.7). Between two rounds nothing of the call is at the server, so
// another replica can go on from the record.

// mostRounds bounds how often one call is made again with answers.
const mostRounds = 100

// Pauses before a server is called again that asked for nothing but that.
const (
	roundFirst = time.Second
	roundMost  = 30 * time.Second
)

// round is the state of one round, as it is stored.
type round struct {
	N int `json:"n"` // number of this round, from 1
	// State is returned to the server as it spelt it; nil for none.
	State json.RawMessage `json:"state,omitempty"`
	// Again says that the server is called again once the questions are settled, but gets only the
	// request.
	Again bool `json:"again,omitempty"`
	// Heard is the furthest progress that the server has reported by then, or nil.
	Heard *float64 `json:"heard,omitempty"`
	// Questions are the server's; their contents are in the mailbox.
	Questions []asked `json:"questions,omitempty"`
	// noted says that the record has the round, or may have it. Until then it must stay out of the
	// record: an adopter of the call would ask empty questions.
	noted bool
}

// asked is one question of a round.
type asked struct {
	Name   string `json:"name"` // the server's name for it
	Key    string `json:"key"`  // the gateway's: the server's names may come again, keys may not (T39)
	Method string `json:"method"`
}

// rounds makes the upstream call of a run, and makes it again with answers if the server asks with its
// result. The run owns it. It belongs to the goroutine of the upstream call; run.mu also guards open,
// which others read, and heard.
type rounds struct {
	run *Run
	// heard is the furthest progress that the server has reported, and before its value when the server
	// last asked; nil at first.
	heard, before *float64
	// open is the server's request for input that still waits for its retry.
	open *round
	// away: the call has given its slot back, since the server only waits.
	away bool
}

// sendRounds waits for a slot, makes the upstream call, and makes it again with answers as long as the server asks for
// them. Once its context has ended it returns the context's cause, so that every caller sees the
// reason.
func (rs *rounds) sendRounds() (shim.Reply, error) {
	r := rs.run
	if err := rs.claimRerun(); err != nil {
		return shim.Reply{}, err
	}
	if err := r.takeTurn(); err != nil {
		return shim.Reply{}, err
	}
	r.mu.Lock()
	first := r.record.Checkpoint == nil && r.begun == 1 && rs.open == nil
	r.mu.Unlock()
	if first { // and never sent before
		r.Observed.measureQueue()
	}
	n, now := 0, []shim.Question(nil)
	for retry := (*shim.Retry)(nil); ; {
		if rs.open != nil {
			n = rs.open.N
			var refusal *shim.RPCError
			var err error
			rs.leavePlace()
			retry, refusal, err = rs.answerRound(now)
			if err == nil && refusal == nil {
				err = rs.takePlace()
			}
			if err != nil || refusal != nil {
				return shim.Reply{Error: refusal}, r.findCause(err)
			}
		}
		reply, err := rs.sendOnce(retry)
		if err != nil || !rs.wantsRetry(&reply) {
			return reply, r.findCause(err)
		}
		if n >= mostRounds {
			return shim.Reply{Error: &shim.RPCError{Code: shim.CodeInternal, Message: "the server asked for input too often"}}, nil
		}
		if why := r.policy.Questions.Refuse(r.box.made, 0, 0, reply.Round.Questions...); why != "" {
			return shim.Reply{Error: &shim.RPCError{Code: shim.CodeInternal, Message: "the server asked for more than it may: " + why}}, nil
		}
		now = rs.beginRound(n+1, reply.Round)
	}
}

// claimRerun notes at the task whose call this one runs again that it does. Of several, one is sent.
func (rs *rounds) claimRerun() error {
	r := rs.run
	task := r.record.copyTask()
	if task.RerunOf == "" {
		return nil
	}
	first, err := node.Retry(r.Ctx, func(ctx context.Context) (shim.ID, error) {
		return r.core.Store.NoteRerun(ctx, task.RerunOf, task.ID)
	})
	switch {
	case errors.Is(err, shim.ErrNotFound): // its time is over, and nobody can run it again any more
		return nil
	case err != nil:
		return r.findCause(err)
	case first != task.ID:
		return &shim.UpstreamError{Kind: "rerun", Message: "another task runs this call again already", Unsent: true}
	}
	return nil
}

// sendOnce makes the upstream call once. A call that stayed unsent because the store was unavailable is
// made again: a task waits for the store until its own time is over, a blocking caller for
// StoreTimeout.
func (rs *rounds) sendOnce(retry *shim.Retry) (shim.Reply, error) {
	r := rs.run
	r.sent.Store(true)
	begin := time.Now()
	for d := node.RetryFirst; ; d = min(2*d, node.RetryMost) {
		reply, err := r.Srv.Upstream.Call(r.Observed.placeBelow(r.Ctx), r.upstreamRequest(retry), r)
		if err == nil && reply.Result != nil {
			r.Srv.LearnPace(r.Call.Request, r.policy, time.Since(begin), reply.Result)
		}
		if up, ok := errors.AsType[*shim.UpstreamError](err); !ok || !up.Unsent || !errors.Is(err, shim.ErrUnavailable) {
			return reply, err
		}
		next := node.SpreadPause(d)
		if r.RecordID() == "" {
			next = min(next, r.core.StoreTimeout-time.Since(begin))
		}
		if next <= 0 || work.Pause(r.Ctx, next) != nil {
			return reply, err
		}
	}
}

// upstreamRequest returns the request for the upstream client: the client's request with the answers
// for the server, if any, and the time that it may take.
func (r *Run) upstreamRequest(retry *shim.Retry) shim.Request {
	req := r.Call.Request
	req.Rounds, req.Limits, req.Retry = r.Call.Asking != shim.AskNever, r.policy.Questions, retry
	if req.Method == shim.CallTool {
		req.Within, req.Job = r.policy.Timeout, r.policy.Job
		req.IfRepeatable = r.policy.IfRepeatable && r.begun > 1
	}
	return req
}

// wantsRetry reports whether the caller is to be asked for this reply and the call made again. A reply
// without questions is repeated for every caller. A caller with a stream of its own gets the error that
// says which page to open first: it knows that error (protocol.md 7.4).
func (rs *rounds) wantsRetry(reply *shim.Reply) bool {
	switch {
	case reply.Round == nil:
		return false
	}
	rs.run.hold.Keep() // the questions may be open for longer than the call
	switch {
	case !reply.InputRequired:
		return rs.run.Call.Asking == shim.AskPark
	case rs.relaysQuestions():
		return false
	}
	return rs.run.Call.Asking != shim.AskNever || len(reply.Round.Questions) == 0
}

// relaysQuestions reports whether the questions go back to the caller as they came, which answers them
// with another call: the caller can, and there is no record. From then on none is made.
func (rs *rounds) relaysQuestions() bool {
	r := rs.run
	if r.turn.takeInTime() != nil {
		return false
	}
	defer r.turn.give()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.Call.Request.Relay || r.record.exists() {
		return false
	}
	r.ended = true
	return true
}

// beginRound opens a round, and gives the server's questions keys of their own.
func (rs *rounds) beginRound(n int, from *shim.Round) []shim.Question {
	r := rs.run
	r.mu.Lock()
	defer r.mu.Unlock()
	rs.before = rs.heard
	rs.open = &round{N: n, State: from.State, Again: from.Again, Heard: rs.heard}
	questions := make([]shim.Question, len(from.Questions))
	for i, q := range from.Questions {
		r.box.made++
		key := fmt.Sprintf("q%d", r.box.made)
		rs.open.Questions = append(rs.open.Questions, asked{Name: q.Key, Key: key, Method: q.Method})
		questions[i] = shim.Question{Key: key, Method: q.Method, Params: q.Params}
	}
	return questions
}

// goOn takes over the open round of the previous runner, if there was one.
func (rs *rounds) goOn(from *round) {
	if from != nil {
		rs.heard, rs.before = from.Heard, from.Heard
	}
	rs.open = from
	rs.noteOpen()
}

// repeatsProgress takes a progress notification, and reports whether it repeats one of an earlier
// round: a server that is called again begins from the start. run.mu is held.
func (rs *rounds) repeatsProgress(p shim.Progress) bool {
	if rs.heard == nil || p.Progress > *rs.heard {
		rs.heard = &p.Progress
	}
	if rs.before == nil || p.Progress > *rs.before {
		return false
	}
	_, numbered := jsonrpc.Get(p.Raw, "progress")
	return numbered
}

// answerRound asks the questions of the open round and makes the retry of the answers. Questions that
// the previous runner asked are in the record; questions is nil then. The record has the round until
// answerRound returns; then the retry may be sent.
func (rs *rounds) answerRound(questions []shim.Question) (*shim.Retry, *shim.RPCError, error) {
	r, rd := rs.run, *rs.open
	if len(rd.Questions) == 0 {
		return &shim.Retry{State: rd.State}, nil, rs.waitBetween(rd.N)
	}
	if questions == nil {
		for _, a := range rd.Questions {
			questions = append(questions, shim.Question{Key: a.Key, Method: a.Method})
		}
	}
	if rd.Again && rd.N > 1 && work.Pause(r.Ctx, pauseFor(rd.N-1)) != nil { // a client may agree by itself
		return nil, nil, context.Cause(r.Ctx)
	}
	answers, err := r.Ask(r.Ctx, questions...)
	if err != nil {
		if r.Ctx.Err() == nil && r.core.Life.Ctx.Err() == nil {
			return nil, &shim.RPCError{Code: shim.CodeInternal, Message: "the server asked for input, and the client could not be asked"}, nil
		}
		return nil, nil, err
	}
	if rd.Again {
		return &shim.Retry{}, checkAgreed(answers), nil
	}
	retry := &shim.Retry{State: rd.State, Answers: make(map[string]json.RawMessage, len(answers))}
	for i, a := range answers {
		// A retry has results only: an error can be spelt only if the method has a result for it
		// (protocol.md H3).
		if a.Error != nil {
			a = shim.Unanswered(questions[i], "the client did not answer what the server needs to know")
		}
		if a.Error != nil {
			return nil, a.Error, nil
		}
		retry.Answers[rd.Questions[i].Name] = a.Result
	}
	return retry, nil, nil
}

// checkAgreed returns nil if the user has agreed to all questions.
func checkAgreed(answers []shim.Answer) *shim.RPCError {
	for _, a := range answers {
		if action, _ := jsonrpc.GetString(a.Result, "action"); a.Error != nil || action != "accept" {
			return &shim.RPCError{Code: shim.CodeInternal, Message: "the server wants a page to be opened first, and the user did not agree"}
		}
	}
	return nil
}

// pauseFor returns the pause before a server is called again for the n-th time.
func pauseFor(n int) time.Duration { return min(roundFirst<<min(n-1, 5), roundMost) }

// waitBetween waits before a server is called again that asked for nothing else: it sheds load. The
// record has the round meanwhile, and before waitBetween returns it says that the retry may be sent.
func (rs *rounds) waitBetween(n int) error {
	if err := rs.persistRound(); err != nil {
		return err
	}
	if work.Pause(rs.run.Ctx, pauseFor(n)) != nil {
		return context.Cause(rs.run.Ctx)
	}
	if err := rs.takePlace(); err != nil {
		return err
	}
	rs.endRound()
	return rs.persistRound()
}

// leavePlace gives the slot back while a round is open, since the server only waits.
func (rs *rounds) leavePlace() {
	rs.run.ticket.DropSlot()
	rs.away = true
}

// takePlace waits for a slot again. It is called while the record has the round and its answers: an
// adopter of the call then goes on from there.
func (rs *rounds) takePlace() error {
	r := rs.run
	if !rs.away {
		return nil
	}
	rs.away = false
	if r.Call.Request.Method != shim.CallTool {
		return nil
	}
	var err error
	if r.ticket, err = r.Srv.Slots.ReserveSlot(r.Call.Request, r.policy.Concurrency, true); err != nil {
		return err
	}
	return r.takeTurn()
}

// seat implements shim.Placed for the run that owns it, which belongs to the goroutine of the upstream call.
type seat struct{ of *Run }

// LeavePlace gives the slot of the call back while a job of it is followed.
func (s seat) LeavePlace() { s.of.ticket.DropSlot() }

// TakePlace waits for a slot again. The wait is not that of a call which is yet to be sent, so neither the status message
// nor the record says anything of it.
func (s seat) TakePlace(ctx context.Context) (err error) {
	r := s.of
	if r.ticket, err = r.Srv.Slots.ReserveSlot(r.Call.Request, r.policy.Concurrency, true); err != nil || !r.ticket.IsQueued() {
		return err
	}
	return r.ticket.AwaitSlot(ctx)
}

// persistRound records whether a round is open, if the call has a record. A closed round means that the
// retry was sent, and must outlast a failover.
func (rs *rounds) persistRound() error {
	r := rs.run
	if r.RecordID() == "" {
		return nil
	}
	_, err := r.record.applyWithPieces(r.Ctx, func() shim.Change {
		rs.noteOpen()
		return shim.Change{Call: r.callRecord(true), Durable: rs.open == nil}
	}, func() {})
	return err
}

// noteOpen notes that the record is about to have the open round. run.mu is held.
func (rs *rounds) noteOpen() {
	if rs.open != nil {
		rs.open.noted = true
	}
}

// recordedRound returns the open round, if the record may have it.
func (rs *rounds) recordedRound() *round {
	if rs.open == nil || !rs.open.noted {
		return nil
	}
	return rs.open
}

// endRound closes the round, if one is open, and returns the new call record.
func (rs *rounds) endRound() json.RawMessage {
	rs.run.mu.Lock()
	defer rs.run.mu.Unlock()
	if rs.open == nil {
		return nil
	}
	rs.open = nil
	return rs.run.callRecord(true)
}
