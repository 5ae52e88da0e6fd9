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
	// ErrNotFound: the task is unknown, or hidden from this caller.
	ErrNotFound = errors.New("no such task")
	// ErrFinal: the change is refused in the status of the task; with a single state machine that means
	// that the task has ended.
	ErrFinal = errors.New("task has ended")
	// ErrLeaseLost: another replica runs the task now.
	ErrLeaseLost = errors.New("task is run by another replica")
	// ErrPosition: batches at a position beyond the end of the stored ones would leave a gap.
	ErrPosition = errors.New("batches leave a gap")
	// ErrCursor: the cursor is not one that List returned.
	ErrCursor = errors.New("bad cursor")
	// ErrUnavailable: the store could not be reached, did not answer in time, or with words that are none
	// of the others here. A write may or may not have taken place; it may be repeated.
	ErrUnavailable = errors.New("task store unavailable")
	// ErrRefusedWrite comes with the ErrUnavailable of a store that takes no writes at the moment: it is
	// full, for example. This write has not taken place.
	ErrRefusedWrite = errors.New("the write was refused")
	// ErrRepeat comes with the ErrUnavailable of a client's request to its task: the client may make
	// the same request again.
	ErrRepeat = errors.New("ask again")
	// ErrUnconfirmed says of a call that had to become a task first that its creation is uncertain:
	// another replica may find the task and send the call. It comes with ErrUnavailable.
	ErrUnconfirmed = errors.New("task store unavailable; the call may still be made")
)

// Part says how much of a task Get reads, so that a poll of the status leaves a 20 MB result in the
// store.
type Part uint8

// The parts of a task.
const (
	// Summary is everything but the outcome, the timeline and the parts for a runner (Call,
	// Checkpoint and Arguments).
	Summary Part = iota
	// WithOutcome adds Outcome.
	WithOutcome
	// WithRun is a Summary with Call, Checkpoint, Arguments and RerunOf.
	WithRun
	// WithTimeline is a Summary with Timeline, RerunOf and RerunAs, and WithAll has Call, Arguments and Outcome as well.
	WithTimeline
	WithAll
)

// Change is one atomic step of a task. Zero fields change nothing. It applies only while the task has
// not ended, and To is checked against the state machine.
type Change struct {
	// Op names the operation. Apply with the Op of the last change applied only returns the task, so
	// that a write whose reply was lost may be repeated. It is needed wherever To, StatusMessage,
	// Visible, KeptUntil or Take is set.
	Op string
	// To is the new status. A final one settles TTL (elapsed + Retain), ends the lease, lets the record
	// expire, and leaves only what readers of an ended task need: Call and Checkpoint go, and so do Arguments without
	// KeepArguments; open questions are withdrawn, and the others lose their answers.
	To            Status
	KeepArguments bool
	// StatusMessage replaces the message, if not nil.
	StatusMessage *string
	// Progress replaces the task's, if it has a token.
	Progress TaskProgress
	// Outcome goes with To: Completed or Failed.
	Outcome *Outcome
	// Tail is appended at At in the same step: a reader that sees the end must see the last pieces
	// (design.md 0.19). Batches that are already stored there are skipped. An At beyond the stored
	// batches is ErrPosition also without a Tail: the store has lost some of the stream.
	Tail []Batch
	At   Position

	// Ask adds questions and makes the task InputRequired; a key is added only the first time it is
	// seen.
	Ask []Question
	// Withdraw ends questions that the upstream no longer waits for. Only their keys are kept.
	Withdraw []string
	// Answer stores answers to outstanding questions; other keys are ignored (T36). Answering or
	// withdrawing the last outstanding question makes the task Working again, counted in the same step.
	// The method and params of an answered question are dropped.
	Answer map[string]json.RawMessage
	// Take marks answers as taken, under Op: a later Take of a key with another Op gets it as untaken
	// (see Apply).
	Take []string

	// Order numbers the changes of a runner; 0 for none. After a change with a higher Order under the
	// same lease, a late one's StatusMessage, Progress, Call, Checkpoint and Ask are ignored; a change
	// that ends the task still applies. A runner makes one change after the other, so one that is in
	// time also drops the answers that another Op has taken: the runner has them. Their Question.Answer
	// becomes Forgotten.
	Order int64
	// Visible makes a hidden call a task.
	Visible bool
	// TTL raises the task's TTL to this value (from creation); a lower one is ignored.
	TTL time.Duration
	// Retain replaces Task.Retain if not zero.
	Retain time.Duration
	// Call replaces Task.Call, if not nil. Checkpoint replaces the checkpoint, unless more pieces are
	// stored than those up to At and the Tail: then it is an old one.
	Checkpoint json.RawMessage
	Call       json.RawMessage
	// Durable has the store keep this change as safely as the creation and the end of a task, where it
	// keeps those more safely than the rest (design.md 0.20). A call waits for such a change, after
	// which it must no longer be taken for unsent.
	Durable bool
	// KeptUntil replaces Task.KeptUntil, if not nil.
	KeptUntil *time.Time
	// Moments are added to the timeline of the task. They alone are no change: watchers get no event.
	Moments []Moment
	// Token is the sealed token of the request that makes this change. It goes to the runner with the
	// Event of the change; the store keeps only Task.TokenAt. Without a lease only.
	Token string
}

// Event says that a task may have changed. It is a hint to read again; the store has the truth
// (design.md 0.4).
type Event struct {
	// Synced is sent first, and again whenever events may have been lost (a reconnect): all watched
	// tasks must be read again. ID is empty then.
	Synced bool
	// ID is the task, Version the version that it had reached. A change of nothing but the Tail and the
	// Checkpoint repeats the version.
	ID      ID
	Version int64
	// Token, in an Inbox alone, is the newest Change.Token of the task.
	Token string
	// Goodbye, in an Inbox alone, says that some replica has said goodbye: its tasks may be adopted. Or an operator has
	// changed what is paused (Pauses). ID is empty then.
	Goodbye bool
	// Linger, in an Inbox alone, is news of calls that may be picked up (Repeats). ID is empty then.
	Linger *LingerNews
}

// Parts is how many parts Store.Running divides tasks into, by the first hex digit of their id
// (ID.Part).
const Parts = 16

// Held is a task that a replica runs, by the store's knowledge.
type Held struct {
	ID ID
	// Version is that of the last change by anyone but the runner, as in the Event of that change; 0
	// before the first.
	Version int64
}

// Store keeps calls and tasks between requests and between replicas.
//
// Every write is durable on the store when it returns, and a Get anywhere that starts after it sees it.
// A store that can lose its last writes in a failover keeps Create, an Apply that ends a task, and one
// with Change.Durable from that as well as its configuration allows. Every write may be repeated
// (design.md 0.12). Every method may return ErrUnavailable; other errors are named at the method. Times
// and durations are kept in whole milliseconds, rounded up. The suite shimtest.Store is the contract in
// executable form.
type Store interface {
	// Create stores a new task with its first batches, and lists it under its ListKey. It returns the
	// task with the store's times. A second Create with the same ID and Op returns the stored task;
	// another Op is ErrFinal.
	Create(ctx context.Context, t Task, begin ...Batch) (Task, error)

	// Get reads a task. ErrNotFound. Questions and Position are always included.
	Get(ctx context.Context, id ID, part Part) (Task, error)

	// List returns up to n visible tasks of a list key, oldest first, as summaries, and the cursor of
	// the next page ("" after the last). A cursor stays valid while tasks come and go, and shows each
	// task at most once. ErrCursor.
	List(ctx context.Context, listKey, cursor string, n int) ([]Task, string, error)

	// Apply makes one change and returns the task after it, as a Summary. With a lease, only its holder
	// may: ErrLeaseLost. A task that has ended refuses with ErrFinal, whatever the lease, and returns
	// the task as it is; so does a To that may not follow. ErrPosition for an At beyond the stored
	// batches. ErrNotFound. With Take, the questions returned have Taken set only for the keys that
	// this Op took.
	Apply(ctx context.Context, id ID, lease *Lease, c Change) (Task, error)

	// NoteRerun notes that a task which has ended is run again as another one, and returns the one that was noted
	// first: a task is run again once. ErrNotFound.
	NoteRerun(ctx context.Context, id, as ID) (first ID, err error)

	// Batches returns the contents of the stored batches, in order, after the first skip. ErrNotFound
	// once the task is gone.
	Batches(ctx context.Context, id ID, skip int64) ([]json.RawMessage, error)

	// Watch yields an Event for each change of these tasks, beginning with Synced, until ctx ends or
	// the caller stops. Events of one task may be merged. An error is final (the store is closed); an
	// outage is waited out and ends with Synced.
	Watch(ctx context.Context, ids ...ID) iter.Seq2[Event, error]

	// Inbox is Watch for all tasks that a replica runs, for the changes that others make (cancel,
	// answers, a lost lease), and for every replica's goodbye.
	Inbox(ctx context.Context, r Replica) iter.Seq2[Event, error]

	// Running lists the tasks of one part, 0 to Parts-1, that are r's to run and have not ended. A
	// replica finds tasks by it whose events it has missed. An error comes with the tasks from all
	// parts of the store that are available.
	Running(ctx context.Context, r Replica, part int) ([]Held, error)

	// Epoch names the contents of the store: it returns another name once all of them are lost.
	Epoch(ctx context.Context) (string, error)

	// Beat says that a replica is alive for another ttl by the store's clock, in one write for all its
	// tasks. A ttl of 0 says goodbye: its tasks may be adopted at once. A replica beats before it
	// creates or adopts its first task, because only a replica with a heartbeat can be missed.
	Beat(ctx context.Context, r Replica, ttl time.Duration) error

	// Adopt hands r up to n tasks of replicas that are gone (their heartbeat has expired, or they said
	// goodbye), if the tasks run on one of the upstreams named, or on any once ten expiries have passed
	// since the replica's last beat. Each comes with its new lease, updated by that, with From, and
	// WithRun. Tasks returned with a nil error are all of r's: an adoption whose reply was lost is
	// returned by the next Adopt.
	//
	// A part of the store that is unavailable keeps back only its own tasks; if the other parts have
	// none left to hand out, Adopt returns ErrUnavailable, so that a caller that asks until there are
	// no more learns of it. A store whose clock has jumped ahead, or that went back to an older state,
	// as in a failover, waits one full expiry by that clock before it declares a replica gone. Adopt
	// checks again that a replica is gone before it hands out its tasks; a command that is executed
	// much later than it was sent hands out nothing.
	Adopt(ctx context.Context, r Replica, upstreams []string, n int) ([]Task, error)
}
