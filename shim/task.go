package shim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// ID names a task. It begins with a version 4 UUID in its canonical spelling: 122 random bits, because
// a caller without authentication may have only the id to show (protocol.md T18, L37). The id of a task
// ends with a mark.
type ID string

// NewID makes a fresh, unguessable id without a mark.
func NewID() ID { return ID(uuid.NewString()) }

// The lengths of an ID, in bytes: without a mark, which is the id of a question, and with one.
const (
	BareIDLength   = 36
	MarkedIDLength = BareIDLength + 1 + 2*20
)

// ParseID reads an id that a client sent, in its canonical spelling only: a key must have exactly one
// spelling. All others are ErrNotFound, as an unknown id is (T30, L36). An id without a mark is of a
// question.
func ParseID(s string) (ID, error) {
	if len(s) != BareIDLength && len(s) != MarkedIDLength {
		return "", ErrNotFound
	}
	for i := range len(s) {
		dash := i == 8 || i == 13 || i == 18 || i == 23 || i == BareIDLength
		if dash != (s[i] == '-') || !dash && !strings.Contains("0123456789abcdef", s[i:i+1]) {
			return "", ErrNotFound
		}
	}
	return ID(s), nil
}

// Part is the part of Store.Running that a task is in.
func (id ID) Part() int {
	n, _ := strconv.ParseUint(string(id[:1]), 16, 8)
	return int(n)
}

// Status is where a task is in its life, in the spelling that both task dialects share.
type Status string

// The statuses of a task. A tool's own error (isError) ends a task as Completed
// here; the legacy dialect spells that one failed (protocol.md H1).
const (
	Working       Status = "working"
	InputRequired Status = "input_required"
	Completed     Status = "completed"
	Failed        Status = "failed"
	Cancelled     Status = "cancelled"
)

// next is the whole state machine: the statuses that may follow each one. A status that is missing here
// is final.
var next = map[Status][]Status{
	Working:       {InputRequired, Completed, Failed, Cancelled},
	InputRequired: {Working, Completed, Failed, Cancelled},
}

// Final reports whether a task in this status stays in it for good; false for the empty status.
func (s Status) Final() bool { return s != "" && len(next[s]) == 0 }

// From lists the statuses out of which a task may move into s, sorted. A Store checks a change against
// this list and needs no state machine of its own.
func (s Status) From() []Status {
	var from []Status
	for f, to := range next {
		if slices.Contains(to, s) {
			from = append(from, f)
		}
	}
	slices.Sort(from)
	return from
}

// Open lists the statuses of a task that has not ended, sorted. A change without a new status applies
// to these.
func Open() []Status { return []Status{InputRequired, Working} }

// Principal is the caller of a request. The zero Principal is anonymous: no authentication is
// configured, and the task id alone gives access.
type Principal struct {
	// Subject is the authenticated name, unique within the gateway; empty for
	// an anonymous caller.
	Subject string
	// Session is the legacy session of an anonymous caller. It is no proof of identity (protocol.md
	// Z7); it only selects the tasks that tasks/list shows.
	Session string
	// NoTasks says that the calls of this principal never become tasks: their owner could not be told
	// from others later.
	NoTasks bool
	// Stranger says that anybody may have made up the Subject: in limits the caller counts as one without
	// an owner. Address is that of a caller who counts so, as in Share.
	Stranger bool
	Address  string
}

// Share says towards whose part of a limit something counts.
type Share struct {
	// Owner is the authenticated caller. All callers without one have one share.
	Owner string
	// Address is that of a caller without an owner: one address has half of their share. It is "" where
	// many callers may have one address.
	Address string
}

// Share is the share of each limit that the caller's requests count towards.
func (p Principal) Share() Share {
	if p.Subject == "" || p.Stranger {
		return Share{Address: p.Address}
	}
	return Share{Owner: p.Subject}
}

// KeptTask is what a store keeps of a task that has ended: so many bytes, until then.
type KeptTask struct {
	Share Share // that of the owner
	Bytes int64
	Until time.Time
}

// Owner is the owner of this principal's tasks for their whole life (Z6): the subject, or "" for an
// anonymous caller.
func (p Principal) Owner() string { return p.Subject }

// ListKey names the list that shows the tasks of this principal: that of the subject, that of the
// legacy session, or "" for none.
func (p Principal) ListKey() string {
	switch {
	case p.Subject != "":
		return "p:" + p.Subject
	case p.Session != "":
		return "s:" + p.Session
	default:
		return ""
	}
}

// Replica is one running gateway process. Its name is new at each start.
type Replica string

// Lease says which replica runs a task, and under which adoption. A runner that was declared dead and
// wakes up late holds an older lease, and all its writes are refused with ErrLeaseLost (design.md 0.5).
type Lease struct {
	Replica  Replica
	Adoption int64 // 0 at creation, one more with each adoption
}

// String gives the lease in the form in which a store compares it.
func (l Lease) String() string { return fmt.Sprintf("%s#%d", l.Replica, l.Adoption) }

// ParseLease reads what String wrote.
func ParseLease(s string) (Lease, error) {
	name, n, ok := strings.Cut(s, "#")
	var l Lease
	if !ok {
		return l, fmt.Errorf("lease %q: no adoption", s)
	}
	adoption, err := strconv.ParseInt(n, 10, 64)
	if err != nil {
		return l, fmt.Errorf("lease %q: %w", s, err)
	}
	return Lease{Replica: Replica(name), Adoption: adoption}, nil
}

// Outcome is how a call ended. It is stored once, and each dialect spells it in its own way (H1).
// Exactly one of Result and Error is set.
type Outcome struct {
	// Result is the upstream's result, byte for byte.
	Result json.RawMessage
	// IsError says that Result carries isError: the tool ran and reports failure.
	IsError bool
	// Error is the JSON-RPC error object {code, message, data?}, as JSON.
	Error json.RawMessage
	// Unknown goes with an Error of the gateway after which the server may have done the work.
	Unknown bool
}

// Kind says what happened to a task, in its timeline as in the log.
type Kind string

// The kinds. Progress is in the status message and the log, and stays out of the timeline.
const (
	KindRerun     Kind = "rerun" // the call is that of another task, which an operator runs again
	KindMade      Kind = "made"
	KindQueued    Kind = "queued"
	KindSent      Kind = "sent"
	KindProgress  Kind = "progress"
	KindAsked     Kind = "asked"
	KindAnswered  Kind = "answered"
	KindWithdrawn Kind = "withdrawn" // after the time to answer
	KindCancelled Kind = "cancelled"
	KindAdopted   Kind = "adopted"
	KindResumed   Kind = "resumed"
	KindRetried   Kind = "retried"
	KindLeft      Kind = "left"
	KindGivenUp   Kind = "given_up"  // its client gave up, and it is kept
	KindPickedUp  Kind = "picked_up" // by a repeat
	KindEnded     Kind = "ended"
)

// EventName names the event in the log.
func (k Kind) EventName() string { return "taskgate.task." + string(k) }

// Moment is one thing that happened to a call or a task.
type Moment struct {
	Kind Kind
	// At is the time by the store's clock, when read. A writer sets Ago instead: the time before the
	// write.
	At  time.Time
	Ago time.Duration
	// Detail is a short text of one line: names and ids only, free of questions, answers and messages.
	Detail string
}

// MostMoments is how many moments a timeline keeps. When it is full, each new one replaces the second
// oldest.
const MostMoments = 64

// Question is a request of the upstream for the client's user, model or roots: elicitation/create,
// sampling/createMessage or roots/list. Its method and params are kept only while it is outstanding.
type Question struct {
	Key      string          // unique for the task's whole life (T39)
	Method   string          // the request's method, while it is outstanding
	Params   json.RawMessage // its params, as the upstream sent them, while it is outstanding
	Answer   json.RawMessage // {"result": …} or {"error": {code, message, data?}}, nil while outstanding, or Forgotten
	Taken    bool            // the runner has taken the answer
	Withdraw bool            // the upstream no longer waits for it
}

// Forgotten is the Answer of a question whose answer was dropped from the record.
const Forgotten = "{}"

// Outstanding reports whether the question still waits for an answer.
func (q Question) Outstanding() bool { return q.Answer == nil && !q.Withdraw }

// Batch is one piece that an upstream streams while its task runs. The runner appends it once; it never
// changes.
type Batch struct {
	// Content is a JSON array of at least one content block, and becomes the next seq.
	Content json.RawMessage
}

// Position says how many batches of a task are stored. An append names its position, which makes a
// repeat harmless.
type Position int64

// Task is one call that outlives the request it came with. Times and expiry are the store's: its clock
// is the only one that all replicas share.
type Task struct {
	ID ID
	// Op is the operation that made the task. It tells a repeated Create from a second one.
	Op string
	// Owner is the principal that the task belongs to (Principal.Owner), ListKey the list that shows it
	// (Principal.ListKey), Upstream the configured name of its server. All three are fixed at creation.
	Owner    string
	ListKey  string
	Upstream string
	// Origin is the dialect that made the task (T13).
	Origin string
	// Visible is false for a call that is stored but has not become a task (design.md 0.13): the tasks
	// methods hide it.
	Visible bool

	Status        Status
	StatusMessage string
	// Version goes up with each change.
	Version int64
	// TokenAt is the version of the newest change with a Token; 0 for none.
	TokenAt   int64
	CreatedAt time.Time
	UpdatedAt time.Time
	// Lead is how long before CreatedAt its call was sent; 0 if it was sent later.
	Lead time.Duration
	// TTL is how long after CreatedAt the task stays readable, as clients see it (shownAt). It is
	// settled when the task ends (design.md 0.14).
	TTL time.Duration
	// Retain is how long the task is kept after its end.
	Retain time.Duration
	// PollInterval is the time that clients are asked to wait between two reads; 0 lets it grow with
	// the age of the task.
	PollInterval time.Duration

	// KeptUntil is until when the call is kept although its client gave up, if nobody picks it up before; zero for any
	// other.
	KeptUntil time.Time

	Lease Lease
	// From is the replica that ran the task before. Only Adopt fills it in.
	From Replica
	// Doubted says that the store has gone back to an older state since the task ran at From: the record may
	// call a call unsent that has run. Only Adopt fills it in.
	Doubted bool
	// Method and Tool are the call: "tools/call" and the tool's name.
	Method string
	Tool   string
	// Call is what a runner on another replica needs to go on with the task (runner.CallRecord);
	// opaque to a store.
	Call json.RawMessage
	// Arguments are what is kept of the call for operators (runner.KeptRequest); opaque to a store. Create stores
	// them, and Get WithRun or WithAll and Adopt read them.
	Arguments json.RawMessage
	// RerunOf is the task whose call this one runs again, fixed at creation, and RerunAs the one that runs this
	// one's (Store.NoteRerun); "" for none.
	RerunOf, RerunAs ID
	// Progress is the newest progress, for a client that goes on hearing of it.
	Progress TaskProgress
	// Trace is the W3C context the task was created in: traceparent, tracestate.
	Trace map[string]string
	// Checkpoint is what the upstream client needs to resume; opaque.
	Checkpoint json.RawMessage

	Position  Position   // how many batches are stored
	Questions []Question // in the order they were asked
	// ToolError says that the task's result carries isError, also where the result itself is not read:
	// one dialect spells the status of such a task otherwise (H1).
	ToolError bool
	// OutcomeSize is the length of the outcome in bytes, also where the outcome is not read.
	OutcomeSize int64
	// Unknown is the outcome's, also where the outcome is not read.
	Unknown bool
	// Timeline is the history of the task, oldest first. Only Get with WithTimeline or WithAll fills it
	// in, and a caller of Create.
	Timeline []Moment
	// Outcome is filled in only by Get with WithOutcome or WithAll.
	Outcome *Outcome
}

// TaskProgress is the newest progress of a task whose client named a token for it: in one dialect
// progress goes on under that token until the task ends (L35).
type TaskProgress struct {
	// Token is the client's, JSON; nil for a client that wants no progress.
	Token json.RawMessage
	// Params are those of the newest notification as the server sent it, with another
	// token; nil before the first.
	Params json.RawMessage
}

// pollSteps are the intervals between two reads by the age of a task.
var pollSteps = []struct{ age, interval time.Duration }{
	{20 * time.Second, time.Second},
	{time.Minute, 2 * time.Second},
	{10 * time.Minute, 5 * time.Second},
}

// LongestPoll is the interval of a task older than all of them.
const LongestPoll = 15 * time.Second

// ShownAt returns the task as a client sees it. While it runs, half of its retention is left of its TTL at
// least: not all, as the clock of the store may differ from now's. A PollInterval that is not configured grows
// with the time since the task was made, or since its last change if the client has answered a question and
// waits for the effect.
func (t Task) ShownAt(now time.Time) Task {
	if !t.Status.Final() {
		t.TTL = max(t.TTL, now.Sub(t.CreatedAt)+t.Retain/2)
	}
	if t.PollInterval != 0 {
		return t
	}
	since := t.CreatedAt
	if slices.ContainsFunc(t.Questions, func(q Question) bool { return q.Answer != nil }) {
		since = t.UpdatedAt
	}
	t.PollInterval = LongestPoll
	for _, step := range pollSteps {
		if now.Sub(since) < step.age {
			t.PollInterval = step.interval
			break
		}
	}
	return t
}

// MessageQueued is the status message of a task that waits for its turn.
const MessageQueued = "queued"

// Queued reports whether the call waits for a slot.
func (t Task) Queued() bool { return t.Status == Working && t.StatusMessage == MessageQueued }

// State says in one word where a task is: its status while it runs, or that it is queued, and how it ended.
type State string

// States of a task. Those that have not ended come first.
const (
	StateQueued    State = "queued"
	StateWorking   State = "working"
	StateAsking    State = "input_required"
	StateCompleted State = "completed"
	StateToolError State = "tool_error"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
	StateUnknown   State = "unknown" // it failed, and the server may have done the work
)

// OpenStates are those of tasks that have not ended, and EndedStates all others.
var (
	OpenStates  = []State{StateQueued, StateWorking, StateAsking}
	EndedStates = []State{StateCompleted, StateToolError, StateFailed, StateCancelled, StateUnknown}
)

// Ended reports whether a task in the state has ended.
func (s State) Ended() bool { return !slices.Contains(OpenStates, s) }

// State returns the state of the task.
func (t Task) State() State {
	switch {
	case t.Unknown:
		return StateUnknown
	case t.ToolError:
		return StateToolError
	case t.Queued():
		return StateQueued
	}
	return State(t.Status)
}

// BegunAt is when the call was sent, or when its task was made if that was before.
func (t Task) BegunAt() time.Time { return t.CreatedAt.Add(-t.Lead) }

// ExpiresAt is the earliest time at which the task may be gone.
func (t Task) ExpiresAt() time.Time { return t.CreatedAt.Add(t.TTL) }

// PrincipalOf returns whose task it is, as far as its record says that.
func PrincipalOf(t Task) Principal {
	session, _ := strings.CutPrefix(t.ListKey, t.Upstream+"/s:")
	if session == t.ListKey {
		session = ""
	}
	return Principal{Subject: t.Owner, Session: session}
}

// ListKey keeps the lists of one principal on several upstreams apart: a task is seen only at its own
// upstream's endpoint (design.md 0.7).
func ListKey(p Principal, upstream string) string {
	if key := p.ListKey(); key != "" {
		return upstream + "/" + key
	}
	return ""
}
