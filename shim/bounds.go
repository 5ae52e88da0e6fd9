package shim

import (
	"cmp"
	"encoding/json"
	"fmt"
)

// This file bounds what questions cost: a server asks as it likes, and what it asks, and
// what its client answers, is kept in the record of the call (design.md 0.18).

// QuestionLimits bound the questions of one call. What is 0 has its default.
type QuestionLimits struct {
	// Most is how many questions a call may ask in all; default 1000.
	Most int
	// Open is how many of them may wait for an answer at once; default 64.
	Open int
	// Bytes is how much those may ask together, in bytes of params; default 4 MiB.
	Bytes int64
	// AnswerBytes is how large the answers may be together that the server has not got
	// yet; default 4 MiB.
	AnswerBytes int64
}

// OrDefault gives the limits with their defaults.
func (l QuestionLimits) OrDefault() QuestionLimits {
	return QuestionLimits{
		Most: cmp.Or(l.Most, 1000), Open: cmp.Or(l.Open, 64),
		Bytes: cmp.Or(l.Bytes, 4<<20), AnswerBytes: cmp.Or(l.AnswerBytes, 4<<20),
	}
}

// Refuse says why a call that has asked so many questions, of which so many are open
// with so many bytes of params, may not ask these as well; "" if it may. The text is for
// the server that asks.
func (l QuestionLimits) Refuse(asked, open int, bytes int64, q ...Question) string {
	l = l.OrDefault()
	for i := range q {
		bytes += int64(len(q[i].Params))
	}
	switch {
	case asked+len(q) > l.Most:
		return fmt.Sprintf("too many questions: one call may ask %d", l.Most)
	case open+len(q) > l.Open:
		return fmt.Sprintf("too many questions at once: %d of one call may wait for an answer", l.Open)
	case bytes > l.Bytes:
		return fmt.Sprintf("too large a question: those of one call that wait for an answer may have %d bytes together", l.Bytes)
	}
	return ""
}

// AnswerError says what is wrong with an answer. It was not taken, nor were those that
// came with it, and its question is still open.
type AnswerError struct {
	Key    string // of the question
	Reason string // for the client; it repeats nothing of the answer
}

// Error gives the text for the client.
func (e *AnswerError) Error() string { return fmt.Sprintf("the answer to %q %s", e.Key, e.Reason) }

// checkAnswers are those of the answers that a record waits for, as they are kept. What nobody
// asked for is ignored, whatever it is (T36). An *AnswerError where one of them is no
// answer to its question, or too large.
func (s *Shim) checkAnswers(t Task, answers map[string]Answer) (map[string]json.RawMessage, error) {
	out := make(map[string]json.RawMessage, len(answers))
	room := s.roomForAnswers(t)
	for _, q := range t.Questions {
		a, ok := answers[q.Key]
		if !ok || !q.Outstanding() {
			continue
		}
		if a.Error == nil && s.check != nil {
			if wrong := s.check(q.Method, a.Result); wrong != "" {
				return nil, &AnswerError{Key: q.Key, Reason: "is not valid: " + wrong}
			}
		}
		out[q.Key] = a.encode()
		if room -= int64(len(out[q.Key])); room < 0 {
			return nil, &AnswerError{Key: q.Key, Reason: "is too large"}
		}
	}
	return out, nil
}

// roomForAnswers is how large the answers may be that a record gets.
func (s *Shim) roomForAnswers(t Task) int64 {
	var limits QuestionLimits
	if srv, err := s.findServer(t.Upstream); err == nil && srv.Policy != nil {
		limits = srv.policyFor(Request{Method: t.Method, Name: t.Tool}).Questions
	}
	room := limits.OrDefault().AnswerBytes
	for _, q := range t.Questions {
		if !q.Taken {
			room -= int64(len(q.Answer))
		}
	}
	return room
}
