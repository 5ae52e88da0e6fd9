package shim

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"
)

// Errors of a Store, and of the Shim's methods that read one.
var (
	// ErrNotFound: no such task, or none that the caller may know of.
	ErrNotFound = errors.New("no such task")
	// ErrFinal: the change does not apply in the status the task is in; with a
	// single state machine that means it has ended.
	ErrFinal = errors.New("task has ended")
	// ErrLeaseLost: another replica runs the task now.
	ErrLeaseLost = errors.New("task is run by another replica")
	// ErrPosition: an append names a position that is neither the end of what is
	// stored nor inside it: batches would be missing in between.
	ErrPosition = errors.New("append leaves a gap")
	// ErrCursor: not a cursor that List returned.
	ErrCursor = errors.New("bad cursor")
	// ErrUnavailable: the store could not be reached or did not answer in time.
	// Whether a write took place is unknown; it may be repeated.
	ErrUnavailable = errors.New("task store unavailable")
	// ErrRepeat comes with the ErrUnavailable of what a client asks of its task: the client may
	// ask the same again.
	ErrRepeat = errors.New("ask again")
	// ErrUnconfirmed says of a call that had to become a task first that nobody knows whether it did:
	// another replica may find the task and send the call. It comes with ErrUnavailable.
	ErrUnconfirmed = errors.New("task store unavailable; the call may still be made")
)

// Part says how much of a task Get reads, so that a poll of its status never
// moves a 20 MB result.
type Part uint8

// The parts of a task.
const (
	// Summary is everything but the outcome and what only a runner needs (Call
	// and Checkpoint).
	Summary Part = iota
	// WithOutcome adds Outcome.
	WithOutcome
	// WithRun is a Summary with Call and Checkpoint.
	WithRun
	// WithTimeline is a Summary with Timeline, and WithAll has Call and Outcome as well.
	WithTimeline
	WithAll
)

// Change is one atomic step of a task. Fields that are zero change nothing. It
// applies only while the task has not ended; To is checked against the state
// machine besides.
type Change struct {
	// Op names the operation. Apply with the Op of the last change applied does
	// nothing and returns the task, so that a write whose reply was lost may be
	// repeated. Needed wherever To, StatusMessage, Visible or Take is set.
	Op string
	// To is the new status. A final one settles TTL (elapsed + Retain), ends the
	// lease, lets the record expire, and leaves of it what is read of a task that has
	// ended: no Call, no Checkpoint, and of its questions only which there were, the
	// open ones withdrawn and the others without what was answered.
	To Status
	// StatusMessage replaces the message, if not nil.
	StatusMessage *string
	// Progress replaces the task's, if it has a token.
	Progress TaskProgress
	// Outcome goes with To: Completed or Failed.
	Outcome *Outcome
	// Tail is appended at At in the same step: what was streamed last must be
	// there when the end is seen (design.md 0.19). An At beyond what is stored is
	// ErrPosition also without a Tail: the store has lost some of the stream.
	Tail []Batch
	At   Position

	// Ask adds questions and makes the task InputRequired; a key once seen is
	// never added again.
	Ask []Question
	// Withdraw ends questions the upstream no longer waits for. Of such a question only
	// the key is kept.
	Withdraw []string
	// Answer stores answers to outstanding questions; other keys are ignored
	// (T36). Answering or withdrawing the last outstanding question makes the
	// task Working again, counted in the same step. Of a question that is answered
	// what it asked is not kept.
	Answer map[string]json.RawMessage
	// Take marks answers as taken, under Op: a second Take of a key with another
	// Op leaves it untaken for that caller (see Apply).
	Take []string
	// Forget drops answers that were taken by another Op, whose caller has them by
	// now: Question.Answer is Forgotten then.
	Forget []string

	// Order numbers the changes of a runner. StatusMessage, Progress, Call, Checkpoint and Ask
	// of one that arrives after a change with a higher Order, under the same lease, are
	// ignored; a change that ends the task is not. 0 for none.
	Order int64
	// Visible makes a hidden call a task.
	Visible bool
	// TTL raises the task's TTL to this value (from creation); a lower one is
	// ignored.
	TTL time.Duration
	// Retain replaces Task.Retain if not zero.
	Retain time.Duration
	// Call replaces the Task.Call, if not nil, and Checkpoint the checkpoint, unless more
	// pieces are stored than those up to At and the Tail: then it is an old one.
	Checkpoint json.RawMessage
	Call       json.RawMessage
	// Durable has the store keep this change as safe as the creation and the end of a
	// task, where it keeps those safer than the rest (design.md 0.20). It is what a
	// call waits for that must not be taken for unsent any more.
	Durable bool
	// Moments are added to the timeline of the task. They are no change by themselves: no watcher hears of them.
	Moments []Moment
	// Token goes to the runner with the Event of this change, and is stored nowhere, but for Task.TokenAt: the
	// sealed token of the request that makes it. Without a lease only.
	Token string
}

// Event says that something about a task may have changed. It is a hint to read
// again, never the truth itself (design.md 0.4); pieces that it carries are in the store
// already, at the position that it names.
type Event struct {
	// Synced is sent first, and again whenever events may have been lost (a
	// reconnect): everything watched must be read again. ID is empty then.
	Synced bool
	// ID is the task, Version what it had reached; an Append repeats the version.
	ID      ID
	Version int64
	// Added may have what was appended, so that who has come that far can do without
	// reading it.
	Added Added
	// Token, in an Inbox alone, is the newest Change.Token of the task.
	Token string
	// Goodbye, in an Inbox alone, says that some replica has said goodbye: its tasks
	// may be adopted. ID is empty then.
	Goodbye bool
}

// Parts is how many parts Store.Running divides tasks into: by the first hex digit of
// their id (ID.Part).
const Parts = 16

// Held is a task that a replica runs, as far as the store knows.
type Held struct {
	ID ID
	// Version is what the task had reached by the last change that anyone but its runner
	// has made, as in the Event of that change; 0 before the first.
	Version int64
}

// Store keeps calls and tasks between requests and between replicas.
//
// Every write is durable on the store when it returns, and a Get anywhere that
// starts after it sees it. A store that can lose its last writes in a failover keeps
// Create, an Apply that ends a task, and one with Change.Durable from that as well as
// it is configured to. Every write may be repeated (design.md 0.12). Every
// method may return ErrUnavailable; other errors are named at the method. Times
// and durations are kept in whole milliseconds, rounded up. The suite
// shimtest.Store is the contract in executable form.
type Store interface {
	// Create stores a new task with the batches it begins with, and lists it under
	// its ListKey. It returns the task with the store's times. A second Create
	// with the same ID and Op returns what is stored; another Op is ErrFinal.
	Create(ctx context.Context, t Task, begin ...Batch) (Task, error)

	// Get reads a task. ErrNotFound. Questions and Position are always included.
	Get(ctx context.Context, id ID, part Part) (Task, error)

	// List returns up to n visible tasks of a list key, oldest first, as summaries,
	// and the cursor of the next page ("" after the last). A cursor stays valid
	// while tasks come and go, and shows no task twice. ErrCursor.
	List(ctx context.Context, listKey, cursor string, n int) ([]Task, string, error)

	// Apply makes one change and returns the task after it, as a Summary. With a
	// lease, only its holder may: ErrLeaseLost. A task that has ended refuses with
	// ErrFinal, whatever the lease, and returns the task as it is; so does a To that
	// may not follow. ErrPosition for an At beyond what is stored. ErrNotFound. Of Take,
	// the returned task's questions have Taken set only for those keys that this Op took.
	Apply(ctx context.Context, id ID, lease *Lease, c Change) (Task, error)

	// Append adds batches at a position and, if not nil, replaces the checkpoint.
	// What is already stored there is skipped. An append of which all is stored is a
	// repeat, or an old one that was held up, and its checkpoint is ignored.
	// ErrPosition, ErrFinal, ErrLeaseLost, ErrNotFound.
	Append(ctx context.Context, id ID, lease Lease, at Position, checkpoint json.RawMessage, b ...Batch) error

	// Batches returns the contents of what was appended, in order, but for the first skip
	// batches. ErrNotFound once the task is gone.
	Batches(ctx context.Context, id ID, skip int64) ([]json.RawMessage, error)

	// Watch yields an Event for each change of these tasks by anyone, beginning
	// with Synced, until ctx ends or the caller stops. Events of one task may be
	// merged. It yields an error only for good (the store is closed); an outage is
	// waited out and ends with Synced.
	Watch(ctx context.Context, ids ...ID) iter.Seq2[Event, error]

	// Inbox is Watch for all tasks that a replica runs, for the changes that
	// others make: cancel, answers, a lost lease; and for every replica's goodbye.
	Inbox(ctx context.Context, r Replica) iter.Seq2[Event, error]

	// Running lists the tasks of one part, 0 to Parts-1, that have not ended and are
	// r's to run. It is how a replica finds what it was not told of, or has missed. With an
	// error comes what could be learned all the same, from the parts of the store that are
	// available.
	Running(ctx context.Context, r Replica, part int) ([]Held, error)

	// Epoch names what the store holds: the name is another one once all of that is lost.
	Epoch(ctx context.Context) (string, error)

	// Beat says that a replica is alive for another ttl by the store's clock: one
	// write, however many tasks it runs. A ttl of 0 says goodbye: its tasks may be
	// adopted at once. A replica beats before it creates or adopts its first task:
	// only who has a heartbeat can be missed.
	Beat(ctx context.Context, r Replica, ttl time.Duration) error

	// Adopt hands up to n tasks of replicas that are gone (their heartbeat has
	// expired, or they said goodbye) to r, if they run on one of the upstreams
	// named, or on any once ten of their expiries have passed since their last beat.
	// Each comes with its new lease, updated by that, with From, and WithRun. Tasks that come with no error are
	// all of r's: an adoption whose reply was lost is returned by the next Adopt. A
	// part of the store that is unavailable keeps back only its own tasks; an Adopt
	// that has none to hand out then is ErrUnavailable, so that a caller who asks until
	// there are no more learns of it. A store whose clock has jumped ahead, or that went
	// back to an older state, as in a failover, takes nobody for gone until the expiry has
	// passed by that clock. That a replica is gone is looked at again before its tasks are
	// handed out; what is executed much later than it was asked hands out nothing.
	Adopt(ctx context.Context, r Replica, upstreams []string, n int) ([]Task, error)
}

// mostAdded bounds what is kept for a reader of pieces that came with events, in bytes.
// One that is further behind reads them from the store.
const mostAdded = 16 << 10

// Added are pieces that an Append has stored, as its Event tells of them. The zero value
// says nothing of what there is.
type Added struct {
	// At is how many pieces come before them.
	At int64
	// Pieces are these, in order. They are not changed by anybody.
	Pieces []json.RawMessage
}

// Then is a followed by what a later event of the same task has added. Where that does
// not go on where a ends, or is too much to be kept, it is nothing: the store is to be
// read.
func (a Added) Then(b Added) Added {
	if len(a.Pieces) == 0 || a.At+int64(len(a.Pieces)) != b.At {
		return Added{}
	}
	size := 0
	for _, pieces := range [][]json.RawMessage{a.Pieces, b.Pieces} {
		for _, p := range pieces {
			size += len(p)
		}
	}
	if size > mostAdded {
		return Added{}
	}
	a.Pieces = append(a.Pieces[:len(a.Pieces):len(a.Pieces)], b.Pieces...)
	return a
}

// after are the pieces of a that come after the first n, and whether a has
// all that there was when it was told of, as far as it knows.
func (a Added) after(n int64) ([]json.RawMessage, bool) {
	if len(a.Pieces) == 0 || a.At > n {
		return nil, false
	}
	return a.Pieces[min(n-a.At, int64(len(a.Pieces))):], true
}
