package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskgate/shim/job"
)

// Mode says when a call of a tool becomes a task (design.md 0.3).
type Mode string

// The modes.
const (
	Never    Mode = "never"    // the call blocks, as it did without the gateway
	Auto     Mode = "auto"     // a task if the call outlasts its grace
	Always   Mode = "always"   // a task at once, for a caller that can take one
	Required Mode = "required" // as Always; a caller that cannot take a task is refused
)

// Policy is the operator's policy for one tool.
type Policy struct {
	Tasks        Mode
	Grace        time.Duration // an Auto call becomes a task after it, or GraceAuto
	TTL          time.Duration // how long a task is kept after its end
	PollInterval time.Duration // asked of clients, 0 = it grows with the age of the task
	Timeout      time.Duration // the longest a task may run
	FoldProgress bool          // progress moves the status message
	Retry        bool          // the owner allows a second run (recover: retry, or auto)
	IfRepeatable bool          // Retry holds while the server says that a second call does no harm (recover: auto)
	Concurrency  int           // calls of this tool in flight, 0 = unbounded
	Partials     Partials      // what is shown of a task while it runs
	EarlyInput   Early         // what happens to a question that comes before there is a task
	InputTimeout time.Duration // how long a question waits for its answer, 0 = TTL in a task, else 10m
	Questions    QuestionLimits
	// ShowArguments keeps the arguments of a task for operators while it runs, and until its TTL if its outcome is
	// unknown.
	ShowArguments bool
	// Rerun lets an operator run the call of a failed task again: its arguments are kept until its TTL.
	Rerun bool
	// Job is how the job is followed that the tool starts; nil for a tool that answers with its result.
	Job    *job.Rules
	Repeat RepeatMode    // what a repeat does of a call whose client gave up; "" = RepeatRun
	Linger time.Duration // how long such a call is kept
}

// GraceAuto is a Policy.Grace that is learned from the calls of the tool on this replica.
const GraceAuto time.Duration = -1

// LearnedGrace is the grace under GraceAuto of a call that is likely to end in time. The most impatient
// clients give up after 60 s.
const LearnedGrace = 30 * time.Second

// Stream takes what an upstream says before there is a handle, for the client on the call's own
// response stream. The shim calls it from one goroutine, and only until Call has returned.
type Stream interface {
	Progress(Progress)
	Log(Log)
}

// Call is a tools/call as a client made it, or another request that a server may answer with
// questions (prompts/get, resources/read). The latter runs under Server.Other and always blocks.
type Call struct {
	Upstream  string // configured name
	Principal Principal
	Request   Request
	Origin    string // the dialect the caller speaks, kept as Task.Origin
	// Handle says that the caller can be given a task; Demand that it must get one
	// at once (legacy params.task), whatever the mode.
	Handle bool
	Demand bool
	// After is for a caller that cannot take a task but can be told of one in words: how long its
	// call may take before a task is made all the same, in place of the policy's grace (design.md
	// 0.10). In mode Required the task is made at once. 0 turns this off; with Handle or Demand it
	// is ignored.
	After time.Duration
	// TTL is the caller's wish, bounded by Policy.TTL; 0 means Policy.TTL.
	TTL time.Duration
	// Block says that the call of this caller blocks even in mode Required: a legacy client has no
	// way to declare abilities (design.md 0.3).
	Block bool
	// Stay says that the call goes on after the caller has left (legacy, protocol.md X3); only an
	// end of its context with cause ErrCancelled cancels it.
	Stay bool
	// Partials says that the client takes partial results (SEP-2679). Only then hints are kept of
	// what its task says, for every reader of the task.
	Partials bool
	// Stream receives progress and logs before the handle. May be nil.
	Stream Stream
	// ProgressToken, JSON, is kept in the record of a call whose caller hears of progress after the
	// handle as well (L35), or may come back at another replica; Request.Progress has to be set.
	ProgressToken json.RawMessage
	// RerunOf is the task whose call an operator, RerunBy, runs again; "" for none.
	RerunOf ID
	RerunBy string
	// Asking says how the caller can be asked; Request.Session.Capabilities declare the kinds of
	// questions that it takes (T40).
	Asking Asking
	// Repeat says how the call is known as the same one as an earlier one.
	Repeat Repeat
}

// Answered is the outcome of a Call: a task, a call handed back with questions, or the upstream's
// reply.
type Answered struct {
	Task   *Task
	Parked *Parked
	Reply  Reply
	// PickedUp is when the work began, if the call was picked up (Repeats); zero for a call of its own.
	PickedUp time.Time
}

// Errors of Call, besides *UpstreamError and the errors of a Store.
var (
	// ErrNeedsTask: this tool can only be called by a client that takes tasks.
	ErrNeedsTask = errors.New("this tool needs a client that supports tasks")
	// ErrForbidsTask: a task was demanded for a tool that never becomes one (L4).
	ErrForbidsTask = errors.New("this tool cannot be called as a task")
	// ErrRemoved: this server was removed; its tasks can still be read.
	ErrRemoved = errors.New("this server is no longer offered; its tasks can still be read")
	// ErrDraining: this replica is shutting down and has not sent the call.
	ErrDraining = errors.New("the gateway is shutting down")
	// ErrRefused is the ErrDraining of a call that has not begun: another replica can make it.
	ErrRefused = fmt.Errorf("%w", ErrDraining)
	// ErrCancelled is the cause with which a caller's context ends when the client cancelled its
	// call explicitly.
	ErrCancelled = errors.New("cancelled by the client")
)

// ChangeError says why a change is not made that an operator asks for.
type ChangeError struct{ Reason string }

// Error is the reason, for operators.
func (e *ChangeError) Error() string { return e.Reason }

// CancelledError is an ErrCancelled with the reason that the client gave for its server.
type CancelledError struct{ Reason string }

// Error is the text of ErrCancelled: the client's reason stays out of logs.
func (*CancelledError) Error() string { return ErrCancelled.Error() }

// Is makes it an ErrCancelled.
func (*CancelledError) Is(target error) bool { return target == ErrCancelled }

// BusyError says that a limit of the gateway is reached, or that an operator has paused what is called. The call was not
// sent, or, if RetryAfter is 0, its answer was refused.
type BusyError struct {
	Key        string        // of the configuration that sets the limit: "max_tasks_per_owner"; or KeyPaused
	Limit      string        // what is full, for the client: "calls to this server", "tasks of this caller"
	Paused     string        // what is paused, for the client, in place of Limit: "this server"
	RetryAfter time.Duration // when to try again; 0 where that could repeat the work
}

// Error gives the text for the client.
func (e *BusyError) Error() string {
	if e.Paused != "" {
		return e.Paused + " is paused by its operator; try again later"
	}
	return fmt.Sprintf("too many %s", e.Limit)
}

// KeepsPieces reports whether readers of the call see pieces besides the result: hints are kept only if the
// client opted in.
func (c Call) KeepsPieces(p Partials) bool {
	return (c.Handle || c.Demand) && (p.Content || c.Partials)
}

// Partials says how the messages of a running tool become partial results (protocol.md 6.4). The zero
// value makes hints of them, unbounded and each at once.
type Partials struct {
	// Content says that the messages of progress are pieces of the result; else they are hints.
	Content bool
	// Most bounds the batches that are kept of one task, MostBytes their bytes; 0 is no bound. Further
	// pieces are left out, and the reader is told (see batcher).
	Most      int
	MostBytes int64
	// Interval is the least time between two batches of a task; Bytes of gathered pieces send one
	// earlier. Without an interval each piece is a batch of its own, at once.
	Interval time.Duration
	Bytes    int
}

// Values for the partial results of every task in production.
const (
	// mostPartials and mostPartialBytes bound the partial results of one task in the store: a tool that
	// reports each of a million steps fills it no further.
	mostPartials     = 10_000
	mostPartialBytes = 8 << 20
	// partialInterval gathers the tokens of a model, 20 times a second, which looks continuous to
	// readers. partialBytes is one write of a usual size.
	partialInterval = 50 * time.Millisecond
	partialBytes    = 64 << 10
)

// NewPartials returns the bounds and intervals for production. content says that the messages of a
// tool's progress are pieces of the result.
func NewPartials(content bool) Partials {
	return Partials{Content: content, Most: mostPartials, MostBytes: mostPartialBytes, Interval: partialInterval, Bytes: partialBytes}
}
