package shim

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"taskgate/internal/jsonrpc"
)

// Asking says how the caller of a Call can be asked while it runs (protocol.md 7.4).
// Session.Capabilities name the kinds of questions: an upstream client refuses the rest.
type Asking uint8

// The ways of asking.
const (
	// AskNever: the caller cannot be asked, and the server is told so (ErrNoAsk).
	AskNever Asking = iota
	// AskPark: the caller is asked in the task, if there is one or one may be made. Otherwise the call
	// is handed back with its questions (Answered.Parked) and goes on alone, and the caller comes back
	// by Reattach (protocol.md H2).
	AskPark
	// AskStream: the caller is asked in the task, if there is one. Otherwise the
	// questions go to Call.Stream, if that is an Asker, while Call goes on blocking;
	// their answers come by Answer, on any replica (protocol.md H7).
	AskStream
)

// Early says what happens to a question that comes before there is a task, if the caller could be given
// one (early_input).
type Early string

// The values of Early.
const (
	EarlyTask Early = "task" // the task is made at once, and asks (H16); also what "" means
	EarlyMRTR Early = "mrtr" // the caller is asked first, and the answered call may become a task (T21)
)

// Asker is a Stream on which the client can be asked: that of a call with AskStream. It is apart from
// Stream, because a client that is asked otherwise has a plain Stream. Like the other methods of a
// Stream, its methods are called from one goroutine and only until Call has returned, and return at
// once.
type Asker interface {
	Stream
	Completer
	// Ask sends questions of the stored call id. On the wire each has the request
	// id <id>/<key>, so that the answer finds it wherever it arrives (design.md 0.18).
	Ask(id ID, q []Question)
	// Withdrawn ends questions that were sent: the server has withdrawn them, or their time is over.
	Withdrawn(id ID, keys []string)
}

// Parked is a call that was handed back to its caller to be answered. It goes on upstream, stored under
// ID but hidden from all task methods (design.md 0.13).
type Parked struct {
	ID ID
	// Questions are all that are open, and only those (T24).
	Questions []Question
	// Until is when the record of the call may be gone, by the store's clock: some time after the
	// questions have run out.
	Until time.Time
}

// How long things last around questions.
const (
	// defaultInputTimeout replaces a Policy.InputTimeout of 0 while the client waits for the call.
	defaultInputTimeout = 10 * time.Minute
	// hiddenRetain is how long a hidden record is kept after its end (design.md 0.13).
	hiddenRetain = time.Minute
	// comeBack is for how long after its questions have run out the caller of a parked call can come
	// back to it.
	comeBack = 2 * time.Minute
)

// errUnanswered is the cause with which the time to answer ends.
var errUnanswered = errors.New("the questions ran out of time")

// elicit is the one method with a result that stands for a missing answer (protocol.md H3).
const elicit = "elicitation/create"

// Unanswered returns the stand-in for a missing answer: the result that the user cancelled, if the
// method has one, or else an error that says why (protocol.md H3).
func Unanswered(q Question, why string) Answer {
	if q.Method == elicit {
		return Answer{Result: json.RawMessage(`{"action":"cancel"}`)}
	}
	return Answer{Error: &RPCError{Code: codeInternal, Message: why}}
}

// encode returns the answer in the form of Question.Answer.
func (a Answer) encode() json.RawMessage {
	if a.Error != nil {
		return append(append([]byte(`{"error":`), a.Error.Object()...), '}')
	}
	return append(append([]byte(`{"result":`), a.Result...), '}')
}

// decodeAnswer reads what encode wrote.
func decodeAnswer(b json.RawMessage) Answer {
	if result, ok := jsonrpc.Get(b, "result"); ok {
		return Answer{Result: result}
	}
	object, _ := jsonrpc.Get(b, "error")
	return Answer{Error: parseError(object)}
}

// parseError reads an error object, its data untouched.
func parseError(object json.RawMessage) *RPCError {
	var e RPCError
	if json.Unmarshal(object, &e) != nil {
		return &RPCError{Code: codeInternal, Message: "unreadable error"}
	}
	return &e
}

// openQuestions returns the outstanding ones of a task's questions.
func openQuestions(questions []Question) []Question {
	return slices.DeleteFunc(slices.Clone(questions), func(q Question) bool { return !q.Outstanding() })
}

func findQuestion(questions []Question, key string) (Question, bool) {
	for _, q := range questions {
		if q.Key == key {
			return q, true
		}
	}
	return Question{}, false
}

// withoutKeys returns the questions that have other keys than these.
func withoutKeys(questions []Question, keys []string) []Question {
	return slices.DeleteFunc(slices.Clone(questions), func(q Question) bool { return slices.Contains(keys, q.Key) })
}

func keysOf(questions []Question) []string {
	keys := make([]string, len(questions))
	for i, q := range questions {
		keys[i] = q.Key
	}
	return keys
}

// methodsOf lists the methods of questions, each once.
func methodsOf(q []Question) string {
	var methods []string
	for i := range q {
		methods = append(methods, q[i].Method)
	}
	slices.Sort(methods)
	return strings.Join(slices.Compact(methods), " ")
}

// letters are the parts of its record that a run keeps while it waits for answers.
type letters struct {
	expires   time.Time
	questions []Question
	// given are questions with answers that a read of the record has found: they count even if the
	// store has forgotten them.
	given []Question
}

// gatherAnswers keeps the untaken answers of a record.
func (l *letters) gatherAnswers(t Task) {
	for _, q := range t.Questions {
		if _, has := findQuestion(l.given, q.Key); q.Answer != nil && !q.Taken && !has {
			l.given = append(l.given, Question{Key: q.Key, Answer: q.Answer, Taken: true})
		}
	}
}

// withGiven returns questions of the record, with the given answers in place of theirs.
func (l letters) withGiven(questions []Question) []Question {
	return append(slices.DeleteFunc(slices.Clone(questions), func(q Question) bool {
		_, has := findQuestion(l.given, q.Key)
		return has
	}), l.given...)
}

// renewedBy returns the letters after the record was read or written.
func (l letters) renewedBy(t Task) letters {
	return letters{t.ExpiresAt(), l.withGiven(t.Questions), l.given}
}

// textOf returns a question in words: its message, or else its method.
func textOf(q Question) string {
	if message, ok := jsonrpc.GetString(q.Params, "message"); ok && message != "" {
		return message
	}
	return q.Method
}

// QuestionLimits bound the questions of one call, since a server's questions and its client's answers
// are kept in the record of the call (design.md 0.18). 0 means the default.
type QuestionLimits struct {
	// Most is how many questions a call may ask in all; default 1000.
	Most int
	// Open is how many of them may wait for an answer at once; default 64.
	Open int
	// Bytes bounds the params of those together, in bytes; default 4 MiB.
	Bytes int64
	// AnswerBytes bounds the answers together that are still on their way to the server, in bytes;
	// default 4 MiB.
	AnswerBytes int64
}

// OrDefault gives the limits with their defaults.
func (l QuestionLimits) OrDefault() QuestionLimits {
	return QuestionLimits{
		Most: cmp.Or(l.Most, 1000), Open: cmp.Or(l.Open, 64),
		Bytes: cmp.Or(l.Bytes, 4<<20), AnswerBytes: cmp.Or(l.AnswerBytes, 4<<20),
	}
}

// Refuse says why a call may not ask these questions as well, after it has asked so many, of which so
// many are open with so many bytes of params; "" if it may. The text is for the server that asks.
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
