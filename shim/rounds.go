package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"taskgate/internal/jsonrpc"
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

// send makes the upstream call, and makes it again with answers as long as the server
// asks for them. What it returns when its context has ended is the context's cause,
// so that every caller sees why.
func (r *run) send() (Reply, error) {
	n, now := 0, []Question(nil)
	for retry := (*Retry)(nil); ; {
		if r.round != nil {
			n = r.round.N
			var refusal *RPCError
			var err error
			retry, refusal, err = r.play(now)
			if err != nil || refusal != nil {
				return Reply{Error: refusal}, r.why(err)
			}
		}
		reply, err := r.callUpstream(retry)
		if err != nil || !r.playsOn(&reply) {
			return reply, r.why(err)
		}
		if n >= mostRounds {
			return Reply{Error: &RPCError{Code: codeInternal, Message: "the server asked for input too often"}}, nil
		}
		if refusal := r.refuseRound(*reply.Round); refusal != nil {
			return Reply{Error: refusal}, nil
		}
		now = r.beginRound(n+1, reply.Round)
	}
}

// playsOn reports whether a reply is one to ask the caller for and to make the call
// again. A caller with a stream of its own gets an error that says what is to be opened
// first: it knows that error (protocol.md 7.4).
func (r *run) playsOn(reply *Reply) bool {
	switch {
	case reply.Round == nil:
		return false
	case reply.InputRequired:
		return !r.relays()
	}
	return r.call.Asking == AskPark
}

// relays reports whether the questions go back to the caller as they came, who
// answers them with another call: it can, and there is no record. From then on none
// is made.
func (r *run) relays() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaitMaking()
	if !r.call.Request.Relay || r.task != nil {
		return false
	}
	r.ended = true
	return true
}

// beginRound gives the questions of a server keys of their own.
func (r *run) beginRound(n int, from *Round) []Question {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round = &round{N: n, State: from.State, Again: from.Again}
	questions := make([]Question, len(from.Questions))
	for i, q := range from.Questions {
		r.box.made++
		key := fmt.Sprintf("q%d", r.box.made)
		r.round.Questions = append(r.round.Questions, asked{Name: q.Key, Key: key, Method: q.Method})
		questions[i] = Question{Key: key, Method: q.Method, Params: q.Params}
	}
	return questions
}

// play asks the questions of a round and makes the retry of the answers. Questions
// that the runner before this one asked are in the record, and are not given again.
// The retry may be sent once it has returned: until then the record has the round.
func (r *run) play(questions []Question) (*Retry, *RPCError, error) {
	rd := *r.round
	if len(rd.Questions) == 0 {
		return &Retry{State: rd.State}, nil, r.pauseRound(rd.N)
	}
	if questions == nil {
		for _, a := range rd.Questions {
			questions = append(questions, Question{Key: a.Key, Method: a.Method})
		}
	}
	if rd.Again && rd.N > 1 && !wait(r.ctx, pauseFor(rd.N-1)) { // a client may agree by itself
		return nil, nil, context.Cause(r.ctx)
	}
	answers, err := r.Ask(r.ctx, questions...)
	if err != nil {
		if r.ctx.Err() == nil {
			return nil, &RPCError{Code: codeInternal, Message: "the server asked for input, and the client could not be asked"}, nil
		}
		return nil, nil, err
	}
	if rd.Again {
		return &Retry{}, agreed(answers), nil
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

// agreed is nil if the user has agreed to everything that was asked.
func agreed(answers []Answer) *RPCError {
	for _, a := range answers {
		if action, _ := jsonrpc.GetString(a.Result, "action"); a.Error != nil || action != "accept" {
			return &RPCError{Code: codeInternal, Message: "the server wants a page to be opened first, and the user did not agree"}
		}
	}
	return nil
}

// pauseFor is how long to wait before the n-th time that a server is called again.
func pauseFor(n int) time.Duration { return min(roundFirst<<min(n-1, 5), roundMost) }

// pauseRound waits before a server is called again that asked for nothing else: it
// sheds load. The record says so, and before it returns that the retry may be sent.
func (r *run) pauseRound(n int) error {
	if err := r.noteRound(); err != nil {
		return err
	}
	if !wait(r.ctx, pauseFor(n)) {
		return context.Cause(r.ctx)
	}
	r.endRound()
	return r.noteRound()
}

// noteRound records whether a round is open, where there is a record. That it is not
// any more is as good as that the retry was sent, and must outlast a failover.
func (r *run) noteRound() error {
	if !r.stored() {
		return nil
	}
	r.drainBatches(r.ctx)
	r.mu.Lock()
	if r.round != nil {
		r.round.noted = true
	}
	r.mu.Unlock()
	return r.persist(r.ctx, func() Change { return Change{Call: r.callRecord(true), Durable: r.round == nil} })
}

// endRound closes the round, if there is one, and returns what is to be recorded of
// the call then.
func (r *run) endRound() json.RawMessage {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.round == nil {
		return nil
	}
	r.round = nil
	return r.callRecord(true)
}
