package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/node"
)

// Update takes results that answer a task's questions, by their keys (design.md 0.18). Keys other than
// those of open questions are ignored (T36). If one is invalid, or too large, it returns an
// *AnswerError and drops all of them. ErrNotFound, ErrUnavailable.
func (s *Shim) Update(ctx context.Context, p shim.Principal, upstream string, id shim.ID, results map[string]json.RawMessage) error {
	t, wanted, err := s.readAnswered(ctx, p, upstream, id, resultsOf(results), func() (shim.Task, error) { return s.Peek(ctx, p, upstream, id) })
	if err == nil {
		_, err = s.storeAnswers(ctx, t, wanted)
	}
	return err
}

func resultsOf(results map[string]json.RawMessage) map[string]shim.Answer {
	answers := make(map[string]shim.Answer, len(results))
	for key, result := range results {
		answers[key] = shim.Answer{Result: result}
	}
	return answers
}

// Answer takes the answer to one question, a result or an error: of a task, or of a hidden call of p's
// under AskStream. An anonymous p must be of the session that made that call. An answer to a closed
// question is ignored (T36). ErrNotFound, ErrUnavailable. If the answer is invalid, or too large, the
// server gets an error that says so: a client that answers one by one could not learn that it should
// repeat it, and the server would wait for that.
func (s *Shim) Answer(ctx context.Context, p shim.Principal, upstream string, id shim.ID, key string, a shim.Answer) error {
	read := func() (shim.Task, error) { return s.readOwnCall(ctx, p, upstream, id, shim.Summary) }
	t, wanted, err := s.readAnswered(ctx, p, upstream, id, map[string]shim.Answer{key: a}, read)
	if bad, ok := errors.AsType[*shim.AnswerError](err); ok {
		a = shim.Answer{Error: &shim.RPCError{Code: shim.CodeInternal, Message: "the client's answer " + bad.Reason}}
		wanted, err = map[string]json.RawMessage{key: a.Encode()}, nil
	}
	if err == nil {
		_, err = s.storeAnswers(ctx, t, wanted)
	}
	return err
}

// askedAgain is how long an answer waits for its question. A store that has gone back may have
// forgotten it, and the replica that runs the call asks it again once it is connected.
const askedAgain = 3 * time.Second

// readAsked reads a record of p's that should have one of the answered questions, open or closed. It links
// the request to the record, and returns the answers that the record waits for (checkAnswers).
func (s *Shim) readAsked(ctx context.Context, p shim.Principal, upstream string, id shim.ID, answers map[string]shim.Answer, read func() (shim.Task, error)) (t shim.Task, wanted map[string]json.RawMessage, err error) {
	for until := time.Now().Add(askedAgain); ; {
		t, err = read()
		forgotten := len(answers) > 0 && err == nil && !t.Status.Final() && !slices.ContainsFunc(t.Questions, func(q shim.Question) bool {
			_, ok := answers[q.Key]
			return ok
		})
		if errors.Is(err, shim.ErrNotFound) {
			_, unknown := s.Marks.DescribeLost(ctx, id, p.Owner(), upstream)
			forgotten = unknown == nil
		}
		if !forgotten || time.Now().After(until) || work.Pause(ctx, askedAgain/30) != nil {
			break
		}
	}
	if err == nil {
		node.LinkTo(ctx, t)
		wanted, err = s.checkAnswers(t, answers)
	}
	return t, wanted, err
}

// mostShown bounds the answers of one request to questions that a call only shows: a client chooses the keys.
const mostShown = 64

// readAnswered is readAsked for a call that may show questions which are not its own. It brings their answers to them,
// also if the call is gone by now. The first answer to such a question counts.
func (s *Shim) readAnswered(ctx context.Context, p shim.Principal, upstream string, id shim.ID, answers map[string]shim.Answer, read func() (shim.Task, error)) (t shim.Task, wanted map[string]json.RawMessage, err error) {
	t, wanted, err = s.readAsked(ctx, p, upstream, id, answers, read)
	if err == nil || errors.Is(err, shim.ErrNotFound) {
		err = cmp.Or(s.answerShown(ctx, p, upstream, answers), err)
	}
	return t, wanted, err
}

func (s *Shim) answerShown(ctx context.Context, p shim.Principal, upstream string, answers map[string]shim.Answer) error {
	shown := 0
	for key, a := range answers {
		id, own, ok := shim.ReadShownKey(key)
		if !ok {
			continue
		}
		if shown++; shown > mostShown {
			return nil
		}
		read := func() (shim.Task, error) { return s.readOwnCall(ctx, p, upstream, id, shim.Summary) }
		t, wanted, err := s.readAsked(ctx, p, upstream, id, map[string]shim.Answer{own: a}, read)
		if err == nil {
			_, err = s.storeAnswers(ctx, t, wanted)
		}
		if err != nil && !errors.Is(err, shim.ErrNotFound) { // it is over
			return err
		}
	}
	return nil
}

// storeAnswers stores the answers that a record waits for, and returns the record.
func (s *Shim) storeAnswers(ctx context.Context, t shim.Task, wanted map[string]json.RawMessage) (shim.Task, error) {
	if len(wanted) == 0 {
		return t, nil
	}
	change := shim.Change{Op: s.NewOp(), Answer: wanted, Token: s.bringToken(ctx, t), Moments: []shim.Moment{{Kind: shim.KindAnswered}}}
	t, err := outlast(ctx, s, func(ctx context.Context) (shim.Task, error) { return s.ChangeRecord(ctx, t.ID, nil, change) })
	switch {
	case errors.Is(err, shim.ErrFinal):
		err = nil
	case err == nil:
		change.Token = ""
		s.Outcomes.HoldEnding(node.Ending{Made: t, End: change})
	}
	return t, err
}

// Outstanding returns the open questions of a task, or of a hidden call of p's; the list is empty once
// it has ended. ErrNotFound, ErrUnavailable.
func (s *Shim) Outstanding(ctx context.Context, p shim.Principal, upstream string, id shim.ID) ([]shim.Question, error) {
	t, err := s.readOwnCall(ctx, p, upstream, id, shim.Summary)
	if err != nil || t.Status.Final() {
		return nil, err
	}
	return shim.OpenQuestions(t.Questions), nil
}

// checkAnswers returns the answers that a record waits for, in their stored form. An answer without an
// open question is ignored, whatever it is (T36). *AnswerError for an answer that is invalid or too
// large.
func (s *Shim) checkAnswers(t shim.Task, answers map[string]shim.Answer) (map[string]json.RawMessage, error) {
	out := make(map[string]json.RawMessage, len(answers))
	room := roomForAnswers(s, t)
	for _, q := range t.Questions {
		a, ok := answers[q.Key]
		if !ok || !q.Outstanding() {
			continue
		}
		if a.Error == nil && s.check != nil {
			if wrong := s.check(q.Method, a.Result); wrong != "" {
				return nil, &shim.AnswerError{Key: q.Key, Reason: "is not valid: " + wrong}
			}
		}
		out[q.Key] = a.Encode()
		if room -= int64(len(out[q.Key])); room < 0 {
			return nil, &shim.AnswerError{Key: q.Key, Reason: "is too large"}
		}
	}
	return out, nil
}

// roomForAnswers returns how many bytes of answers a record may still get.
func roomForAnswers(s *Shim, t shim.Task) int64 {
	var limits shim.QuestionLimits
	if srv, err := s.findServer(t.Upstream); err == nil && srv.Policy != nil {
		limits = srv.PolicyFor(shim.Request{Method: t.Method, Name: t.Tool}).Questions
	}
	room := limits.OrDefault().AnswerBytes
	for _, q := range t.Questions {
		if !q.Taken {
			room -= int64(len(q.Answer))
		}
	}
	return room
}
