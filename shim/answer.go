package shim

import (
	"context"
	"encoding/json"
	"errors"
)

// This file is the mailbox as the faces use it: answers come in, and streams claim
// what they deliver (design.md 0.18). Questions of tasks are read with the task.

// Update hands in results that answer a task's questions; what nobody asked for is
// ignored (T36). ErrNotFound, ErrUnavailable, *AnswerError.
func (s *Shim) Update(ctx context.Context, p Principal, upstream string, id ID, results map[string]json.RawMessage) error {
	t, err := s.see(ctx, p, upstream, id, Summary)
	if err != nil {
		return err
	}
	wanted, err := s.wanted(t, resultsOf(results))
	if err != nil {
		return err
	}
	return s.answer(ctx, t.ID, wanted)
}

// resultsOf are results as answers.
func resultsOf(results map[string]json.RawMessage) map[string]Answer {
	answers := make(map[string]Answer, len(results))
	for key, result := range results {
		answers[key] = Answer{Result: result}
	}
	return answers
}

// Answer hands in the answer to one question of a task, or of a call of p's that is
// no task. ErrNotFound, ErrUnavailable. In place of one that is none, or too large, the
// server gets an error that says so: who gives answers one by one hears of nothing by
// which to give it anew, and the server must not wait for that.
func (s *Shim) Answer(ctx context.Context, p Principal, upstream string, id ID, key string, a Answer) error {
	t, err := s.reach(ctx, p, upstream, id)
	if err != nil {
		return err
	}
	wanted, err := s.wanted(t, map[string]Answer{key: a})
	if bad, ok := errors.AsType[*AnswerError](err); ok {
		a = Answer{Error: &RPCError{Code: codeInternal, Message: "the client's answer " + bad.Reason}}
		wanted = map[string]json.RawMessage{key: a.encode()}
	}
	return s.answer(ctx, id, wanted)
}

// answer stores answers that a record waits for.
func (s *Shim) answer(ctx context.Context, id ID, wanted map[string]json.RawMessage) error {
	if len(wanted) == 0 {
		return nil
	}
	err := s.within(ctx, func(ctx context.Context) error {
		_, err := s.store.Apply(ctx, id, nil, Change{Op: s.op(), Answer: wanted})
		return err
	})
	if errors.Is(err, ErrFinal) {
		return nil
	}
	return err
}

// Outstanding are the open questions of a task, or of a call of p's that is no task; none
// once it has ended. ErrNotFound, ErrUnavailable.
func (s *Shim) Outstanding(ctx context.Context, p Principal, upstream string, id ID) ([]Question, error) {
	t, err := s.reach(ctx, p, upstream, id)
	if err != nil || t.Status.Final() {
		return nil, err
	}
	return outstanding(t.Questions), nil
}

// Claim gives questions to the stream by, for it alone to deliver, and returns those
// that it got or has; no keys means all that are open. ErrNotFound, ErrUnavailable.
func (s *Shim) Claim(ctx context.Context, p Principal, upstream string, id ID, keys []string, by string, over []string) ([]Question, error) {
	t, err := s.reach(ctx, p, upstream, id)
	if err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		keys = keysOf(outstanding(t.Questions))
	}
	if len(keys) == 0 {
		return nil, nil
	}
	err = s.within(ctx, func(ctx context.Context) (err error) {
		t, err = s.store.Apply(ctx, id, nil, Change{Claim: keys, ClaimBy: by, ClaimOver: over})
		return err
	})
	if errors.Is(err, ErrFinal) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var claimed []Question
	for _, key := range keys {
		if q, ok := find(t.Questions, key); ok && q.Claim == by && q.Outstanding() {
			claimed = append(claimed, q)
		}
	}
	return claimed, nil
}
