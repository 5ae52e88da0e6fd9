// Package job reads what a server's job tools say: one tool starts a job and answers with its id, others tell how it
// stands, fetch its result, and cancel it. [Rules] say which tools those are, and where their answers have what. The
// package makes the params of calls, and makes no calls; a job's [Mark] is all that has to be kept of it.
package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"taskgate/internal/jsonrpc"
)

// Rules say how the jobs of one tool are followed.
type Rules struct {
	ID     Place // in the answer to the call that starts a job
	Status Call
	// Value is where the answer of Status has the status, which the lists name. A status that is in no list, or
	// missing, counts as running.
	Value                            Place
	Running, Done, Failed, Cancelled []Value
	// Lost matches what the server says of a job that it no longer knows; nil for none.
	Lost *regexp.Regexp
	// Message, Progress (a number) and RetryAfter (the seconds until the next question) may be empty.
	Message, Progress, RetryAfter Place
	// Result and Cancel may be nil. Without Result the last answer of Status is the result.
	Result, Cancel *Call
	// Interval is the first pause between two questions; it grows to MaxInterval.
	Interval, MaxInterval time.Duration
}

// Mark is what is kept of a job, so that anybody can go on with it. It outlives the process: fields may be added.
type Mark struct {
	// ID is the server's name for the job: a string or a number, as JSON.
	ID json.RawMessage `json:"id"`
	// Arguments are those of the first call that later calls repeat.
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// Bounds of what is kept of a job.
const (
	maxID        = 4 << 10
	maxArguments = 64 << 10
)

// Errors of Begin.
var (
	errNoID     = errors.New("the server's answer names no job")
	errIDForm   = errors.New("the server's answer names a job by something that is neither a text nor a number")
	errIDLength = fmt.Errorf("the server's answer names a job by more than %d bytes", maxID)
	errRepeated = fmt.Errorf("the arguments that later calls repeat have more than %d bytes", maxArguments)
)

// Begin reads which job a call has started: result is the answer to it, params those of the call. The texts of its
// errors are free of the server's words.
func (r *Rules) Begin(result, params json.RawMessage) (Mark, error) {
	id, ok := r.ID.find(readAnswer(result))
	if !ok || string(id) == `""` || string(id) == "null" {
		return Mark{}, errNoID
	}
	if c := id[0]; c != '"' && c != '-' && (c < '0' || c > '9') {
		return Mark{}, errIDForm
	}
	if len(id) > maxID {
		return Mark{}, errIDLength
	}
	arguments, _ := jsonrpc.Get(params, "arguments")
	m := Mark{ID: id, Arguments: r.repeated(arguments)}
	if len(m.Arguments) > maxArguments {
		return Mark{}, errRepeated
	}
	return m, nil
}

// repeated are the arguments that the later calls name.
func (r *Rules) repeated(arguments json.RawMessage) json.RawMessage {
	var kept json.RawMessage
	for _, c := range []*Call{&r.Status, r.Result, r.Cancel} {
		if c == nil {
			continue
		}
		for _, path := range c.Arguments.Repeats() {
			if value, ok := jsonrpc.Get(arguments, path...); ok {
				if kept == nil {
					kept = json.RawMessage(`{}`)
				}
				if with, err := setPath(kept, value, path); err == nil {
					kept = with
				}
			}
		}
	}
	return kept
}

// setPath is jsonrpc.Set, which also makes the objects on the way.
func setPath(obj, value []byte, path []string) ([]byte, error) {
	for i := 1; i < len(path); i++ {
		if _, ok := jsonrpc.Get(obj, path[:i]...); !ok {
			made, err := jsonrpc.Set(obj, []byte(`{}`), path[:i]...)
			if err != nil {
				return nil, err
			}
			obj = made
		}
	}
	return jsonrpc.Set(obj, value, path...)
}

// Phase is how a job stands.
type Phase string

// The phases. A job goes on in Running and Unread, and is over in all others.
const (
	Running   Phase = "running"
	Done      Phase = "done"
	Failed    Phase = "failed"
	Cancelled Phase = "cancelled"
	Lost      Phase = "lost"   // the server no longer knows the job
	Unread    Phase = "unread" // the answer is an error that does not say how the job stands
)

// State is what an answer says of a job.
type State struct {
	Phase Phase
	// Unknown is a status that is in no list, as JSON, or "nothing"; "" for a known one.
	Unknown string
	// Message is "" if the answer has none.
	Message string
	// Progress is nil if the answer has no number there.
	Progress *float64
	// RetryAfter is when the server wants to be asked again; 0 if it does not say so.
	RetryAfter time.Duration
}

// maxRetryAfter bounds what a server may say.
const maxRetryAfter = time.Hour

// Read reads the result of a call of the status tool. isError says that it has the flag of an error.
func (r *Rules) Read(result json.RawMessage, isError bool) State {
	a := readAnswer(result)
	value, found := r.Value.find(a)
	s := State{Phase: Running}
	switch {
	case found && contains(r.Failed, value):
		s.Phase = Failed
	case found && contains(r.Cancelled, value):
		s.Phase = Cancelled
	case found && !isError && contains(r.Done, value):
		s.Phase = Done
	case found && !isError && contains(r.Running, value):
	case r.Lost != nil && a.matches(r.Lost):
		s.Phase = Lost
	case isError:
		s.Phase = Unread
	case found:
		s.Unknown = clip(string(value))
	default:
		s.Unknown = "nothing"
	}
	s.Message, _ = r.Message.findText(a)
	s.Progress = r.Progress.findNumber(a)
	if after := r.RetryAfter.findNumber(a); after != nil && *after > 0 {
		s.RetryAfter = time.Duration(min(*after, maxRetryAfter.Seconds()) * float64(time.Second))
	}
	return s
}

// Forgets reports whether the message of a JSON-RPC error says that the server no longer knows the job.
func (r *Rules) Forgets(message string) bool { return r.Lost != nil && r.Lost.MatchString(message) }

// clip shortens a status for a log.
func clip(s string) string {
	const most = 100
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Place is where an answer has a value: a JSONPath (RFC 9535), or a regular expression with one group. The zero Place is
// nowhere.
type Place struct {
	path    query
	pattern *regexp.Regexp
}

// ParsePlace reads a place: a JSONPath begins with $, and a regular expression stands between slashes.
func ParsePlace(text string) (Place, error) {
	switch {
	case text == "":
		return Place{}, nil
	case strings.HasPrefix(text, "$"):
		path, err := parseQuery(text)
		return Place{path: path}, err
	case len(text) > 1 && strings.HasPrefix(text, "/") && strings.HasSuffix(text, "/"):
		pattern, err := regexp.Compile(text[1 : len(text)-1])
		if err == nil && pattern.NumSubexp() != 1 {
			return Place{}, fmt.Errorf("the expression has %d groups, and needs one: the value is what the group matches", pattern.NumSubexp())
		}
		return Place{pattern: pattern}, err
	}
	return Place{}, errors.New("neither a JSONPath, which begins with $, nor a regular expression between slashes")
}

// ParsePattern reads a regular expression between slashes.
func ParsePattern(text string) (*regexp.Regexp, error) {
	if len(text) < 3 || !strings.HasPrefix(text, "/") || !strings.HasSuffix(text, "/") {
		return nil, errors.New("not a regular expression between slashes")
	}
	return regexp.Compile(text[1 : len(text)-1])
}

// find returns the value, as JSON, unless there is none or more than one.
func (p Place) find(a *answer) (json.RawMessage, bool) {
	switch {
	case p.path != nil:
		for _, doc := range a.documents() {
			if nodes := p.path.Select(doc); len(nodes) == 1 {
				value, err := json.Marshal(nodes[0])
				return value, err == nil
			}
		}
	case p.pattern != nil:
		for _, text := range a.texts {
			if m := p.pattern.FindStringSubmatch(text); m != nil {
				return jsonrpc.AppendString(nil, m[1]), true
			}
		}
	}
	return nil, false
}

// findText is find for a text to show; a number is one, too.
func (p Place) findText(a *answer) (string, bool) {
	value, ok := p.find(a)
	if !ok || len(value) == 0 {
		return "", false
	}
	if text, ok := jsonrpc.String(value); ok {
		return text, true
	}
	if c := value[0]; c != '-' && (c < '0' || c > '9') {
		return "", false
	}
	return string(value), true
}

// findNumber is find for a number, or a text that is one, such as 45%; nil for anything else.
func (p Place) findNumber(a *answer) *float64 {
	text, ok := p.findText(a)
	n, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), "%"), 64)
	if !ok || err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return nil
	}
	return &n
}
