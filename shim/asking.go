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
	// DefaultInputTimeout replaces a Policy.InputTimeout of 0 while the client waits for the call.
	DefaultInputTimeout = 10 * time.Minute
	// HiddenRetain is how long a hidden record is kept after its end (design.md 0.13).
	HiddenRetain = time.Minute
	// ComeBack is for how long after its questions have run out the caller of a parked call can come
	// back to it.
	ComeBack = 2 * time.Minute
)

// ErrUnanswered is the cause with which the time to answer ends.
var ErrUnanswered = errors.New("the questions ran out of time")

// Elicit is the one method with a result that stands for a missing answer (protocol.md H3).
const Elicit = "elicitation/create"

// Unanswered returns the stand-in for a missing answer: the result that the user cancelled, if the
// method has one, or else an error that says why (protocol.md H3).
func Unanswered(q Question, why string) Answer {
	if q.Method == Elicit {
		return Answer{Result: json.RawMessage(`{"action":"cancel"}`)}
	}
	return Answer{Error: &RPCError{Code: CodeInternal, Message: why}}
}

// Encode returns the answer in the form of Question.Answer.
func (a Answer) Encode() json.RawMessage {
	if a.Error != nil {
		return append(append([]byte(`{"error":`), a.Error.Object()...), '}')
	}
	return append(append([]byte(`{"result":`), a.Result...), '}')
}

// DecodeAnswer reads what encode wrote.
func DecodeAnswer(b json.RawMessage) Answer {
	if result, ok := jsonrpc.Get(b, "result"); ok {
		return Answer{Result: result}
	}
	object, _ := jsonrpc.Get(b, "error")
	return Answer{Error: ParseError(object)}
}

// ParseError reads an error object, its data untouched.
func ParseError(object json.RawMessage) *RPCError {
	var e RPCError
	if json.Unmarshal(object, &e) != nil {
		return &RPCError{Code: CodeInternal, Message: "unreadable error"}
	}
	return &e
}

// OpenQuestions returns the outstanding ones of a task's questions.
func OpenQuestions(questions []Question) []Question {
	return slices.DeleteFunc(slices.Clone(questions), func(q Question) bool { return !q.Outstanding() })
}

// FindQuestion returns the question with a key.
func FindQuestion(questions []Question, key string) (Question, bool) {
	for _, q := range questions {
		if q.Key == key {
			return q, true
		}
	}
	return Question{}, false
}

// WithoutKeys returns the questions that have other keys than these.
func WithoutKeys(questions []Question, keys []string) []Question {
	return slices.DeleteFunc(slices.Clone(questions), func(q Question) bool { return slices.Contains(keys, q.Key) })
}

// KeysOf returns the keys of questions, in their order.
func KeysOf(questions []Question) []string {
	keys := make([]string, len(questions))
	for i, q := range questions {
		keys[i] = q.Key
	}
	return keys
}

// BytesOf is how many bytes the params of questions have.
func BytesOf(q []Question) (n int) {
	for i := range q {
		n += len(q[i].Params)
	}
	return n
}

// MethodsOf lists the methods of questions, each once.
func MethodsOf(q []Question) string {
	var methods []string
	for i := range q {
		methods = append(methods, q[i].Method)
	}
	slices.Sort(methods)
	return strings.Join(slices.Compact(methods), " ")
}

// TextOf returns a question in words: its message, or else its method.
func TextOf(q Question) string {
	if message, ok := jsonrpc.GetString(q.Params, "message"); ok && message != "" {
		return message
	}
	return q.Method
}

// AnswerError says what is wrong with an answer. This answer and those that came with it were refused,
// and its question is still open.
type AnswerError struct {
	Key    string // of the question
	Reason string // for the client; free of the answer's content
}

// Error gives the text for the client.
func (e *AnswerError) Error() string { return fmt.Sprintf("the answer to %q %s", e.Key, e.Reason) }

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
	bytes += int64(BytesOf(q))
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

// ShownKey is the key under which a call shows a question that is not its own: that of the record which has the
// question, and the question's key there. So an answer finds its question, also when the call is over by then.
func ShownKey(record ID, key string) string { return string(record) + "/" + key }

// ReadShownKey reads what ShownKey makes; ok is false for the key of a call's own question.
func ReadShownKey(key string) (record ID, own string, ok bool) {
	text, own, ok := strings.Cut(key, "/")
	record, err := ParseID(text)
	return record, own, ok && err == nil
}
