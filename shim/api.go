package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Mode says when a call of a tool becomes a task (design.md 0.3).
type Mode string

// The modes.
const (
	Never    Mode = "never"    // the call blocks, as it did without the gateway
	Auto     Mode = "auto"     // a task if the call outlasts its grace
	Always   Mode = "always"   // a task at once, for who can take one
	Required Mode = "required" // as Always; who cannot take one is refused
)

// Policy is what the operator wants of one tool.
type Policy struct {
	Tasks        Mode
	Grace        time.Duration // how long an Auto call may take without a task
	TTL          time.Duration // how long a task is kept after its end
	MaxTTL       time.Duration // the most a client may wish for
	PollInterval time.Duration // asked of clients
	Timeout      time.Duration // the longest a task may run
	FoldProgress bool          // progress moves the status message
	Retry        bool          // the owner allows a second run (recover: retry)
	Concurrency  int           // calls of this tool in flight, 0 = unbounded
	Partials     Partials      // what is shown of a task while it runs
	EarlyInput   Early         // what a question does that comes before a task
	InputTimeout time.Duration // how long a question waits for its answer, 0 = 10m
	Questions    QuestionLimits
}

// Stream takes what an upstream says before there is a handle: it goes to the
// client on the call's own response stream. The shim calls it from one goroutine
// and not any more once Call has returned.
type Stream interface {
	Progress(Progress)
	Log(Log)
}

// Call is a tools/call as a client made it, or another request that a server may
// answer with questions (prompts/get, resources/read): that one never becomes a task,
// and no policy of a tool applies to it.
type Call struct {
	Upstream  string // configured name
	Principal Principal
	Request   Request
	Origin    string // the dialect the caller speaks, kept as Task.Origin
	// Handle says that the caller can be given a task; Demand that it must get one
	// at once (legacy params.task), whatever the mode.
	Handle bool
	Demand bool
	// After is for a caller that cannot be given a task but can be told of one in
	// words: how long its call may take before a task is made all the same, in place
	// of the policy's grace (design.md 0.10). Where the mode is Required the task is
	// made at once. 0 makes none; with Handle or Demand it means nothing.
	After time.Duration
	// TTL is the caller's wish, 0 for none; bounded by Policy.MaxTTL.
	TTL time.Duration
	// Block says that the caller is served blocking even where the mode is
	// Required: a legacy client could not have declared anything (design.md 0.3).
	Block bool
	// Stay says that a caller who goes away does not cancel the call (legacy,
	// protocol.md X3); only an end of its context with cause ErrCancelled does.
	Stay bool
	// Partials says that the client takes partial results (SEP-2679): only then are
	// hints kept of what its task says, for whoever may read the task.
	Partials bool
	// Streaming says that SEP-1905's streaming was negotiated for this call: what is
	// content then comes as segments and not as partials, and the result that is kept
	// has the merge of all segments for its content (protocol.md 6.4, points 3 and 4).
	Streaming bool
	// Stream receives progress and logs before the handle. May be nil.
	Stream Stream
	// ProgressToken, JSON, is kept in the task of a caller who wants to hear of its
	// progress after the handle as well (L35); Request.Progress has to be set.
	ProgressToken json.RawMessage
	// Asking says how the caller can be asked; what it can be asked, it has declared
	// in Request.Session.Capabilities (T40).
	Asking Asking
	// Asked are the keys of the questions with which a caller who comes back was
	// handed its call (Reattach): if one of them has an answer, it has come back
	// with this before. None stands for those that it answers.
	Asked []string
}

// Answered is what becomes of a Call: a task, a call handed back with questions, or
// the upstream's reply.
type Answered struct {
	Task   *Task
	Parked *Parked
	Reply  Reply
}

// Errors of Call, besides *UpstreamError and the errors of a Store.
var (
	// ErrNeedsTask: this tool can only be called by a client that takes tasks.
	ErrNeedsTask = errors.New("this tool needs a client that supports tasks")
	// ErrForbidsTask: a task was demanded for a tool that never becomes one (L4).
	ErrForbidsTask = errors.New("this tool cannot be called as a task")
	// ErrDraining: this replica takes no new calls.
	ErrDraining = errors.New("the gateway is shutting down")
	// ErrCancelled is the cause with which a caller's context ends when the client
	// cancelled its call in so many words.
	ErrCancelled = errors.New("cancelled by the client")
)

// BusyError says that a limit of the gateway is reached; the call was not sent.
type BusyError struct {
	Limit      string        // what is full, for the client: "calls to this server", "tasks of this caller"
	RetryAfter time.Duration // when to try again
}

// Error gives the text for the client.
func (e *BusyError) Error() string { return fmt.Sprintf("too many %s", e.Limit) }

// API is what the faces of the gateway use of a Shim; *Shim implements it. All
// methods check who asks before anything else: a task of another owner or another
// upstream is ErrNotFound, exactly as an unknown one is (design.md 0.7).
type API interface {
	// Call runs a tools/call and returns its reply, or a task once one was made.
	// If ctx ends before that, the upstream call is cancelled, unless Stay.
	Call(ctx context.Context, c Call) (Answered, error)
	// Get reads a task with its outcome.
	Get(ctx context.Context, p Principal, upstream string, id ID) (Task, error)
	// Peek reads a task without its outcome.
	Peek(ctx context.Context, p Principal, upstream string, id ID) (Task, error)
	// List returns a page of the caller's tasks on this upstream (L20–L22).
	List(ctx context.Context, p Principal, upstream, cursor string) ([]Task, string, error)
	// Cancel moves the task to cancelled and wakes its runner. A task that has
	// ended is returned as it is with ErrFinal; how that is answered is the
	// dialect's matter.
	Cancel(ctx context.Context, p Principal, upstream string, id ID) (Task, error)
	// Reattach comes back to a call that Call or Reattach has handed back (Parked),
	// on any replica, with the results that answer its questions, by their keys. It
	// returns what Call returns: the reply; the call parked again, with all questions
	// that are open, where answers are missing or new questions came; or, where the
	// caller can take a task or be told of one, one after another grace or After. Of c
	// it takes Upstream, Principal, Request.Method and Name, Handle, After, TTL, Stay
	// and Stream. If ctx ends, the call is cancelled, unless Stay.
	//
	// A call of somebody else, or one whose time is over, is ErrNotFound; answers
	// that were given before, ErrAnswered; one that is none, or too large, an
	// *AnswerError, and all of them may be given again; ErrCancelled: the call was cancelled
	// meanwhile. That the replica that ran it was lost is an error in the reply: it
	// is never run again.
	Reattach(ctx context.Context, c Call, id ID, answers map[string]json.RawMessage) (Answered, error)
	// Update hands in results that answer a task's questions, by their keys. Unknown
	// keys, and all keys of a task that waits for nothing, are ignored (T36). One that
	// is none, or too large, is an *AnswerError, and then none of them is taken.
	Update(ctx context.Context, p Principal, upstream string, id ID, results map[string]json.RawMessage) error
	// Answer hands in the answer to one question, be it a result or an error: of a
	// task, or of a call under AskStream that is none. One that nobody waits for is
	// ignored (T36); in place of one that is none, or too large, the server gets an
	// error. An anonymous p must be of the session that made the call, unless it is a
	// task.
	Answer(ctx context.Context, p Principal, upstream string, id ID, key string, a Answer) error
	// Outstanding are the open questions of a task, or of a call that is none, as for
	// Answer; none once it has ended.
	Outstanding(ctx context.Context, p Principal, upstream string, id ID) ([]Question, error)
	// Claim gives questions to one stream, named by, for it alone to deliver (H7),
	// and returns those that are the stream's now, with their params: open ones that
	// nobody had claimed, or somebody named in over (streams that have died), or the
	// stream itself before. No keys means all that are open.
	Claim(ctx context.Context, p Principal, upstream string, id ID, keys []string, by string, over []string) ([]Question, error)
	// Pose asks a client, outside of its calls, what is in a checkpoint of the leg. See
	// Shim.Pose.
	Pose(ctx context.Context, c Call, checkpoint json.RawMessage, done func(id ID, over bool)) (ID, error)
	// FollowPosed is Follow for what Pose has stored, hidden from all task methods.
	FollowPosed(ctx context.Context, p Principal, upstream string, ids []ID, yield func(Task) error) error
	// Wait blocks until the task has ended, and returns it with its outcome.
	Wait(ctx context.Context, p Principal, upstream string, id ID) (Task, error)
	// Follow yields the state of each task first and after every change until all
	// have ended; what may not be seen is passed over. See Shim.Follow.
	Follow(ctx context.Context, p Principal, upstream string, ids []ID, yield func(Task) error) error
	// Track is Follow with the pieces that the tasks stream, each once and in order,
	// and all of them before the state in which the task has ended. See Shim.Track.
	Track(ctx context.Context, p Principal, upstream string, tasks []Tracked, yield func(Update) error) error
	// Segments reads the blocks of the result with a seqNr above after, and the state
	// of the task; if that is final, there are no others. See Shim.Segments.
	Segments(ctx context.Context, p Principal, upstream string, id ID, after int64) ([]json.RawMessage, Task, error)
}
