// Package shim decides about tasks: it turns a synchronous call to an upstream into a
// task, keeps the task going after its client has left, and says who may see it. Calls of
// clients come in with the operator's policy for the tool; replies, tasks and their
// changes go out.
//
// It knows when a task is made, who owns it, which replica runs it and what happens when
// that replica is gone. The gateway knows HTTP, YAML and the dialects of tasks; a [Store]
// knows Redis; an [Upstream] reaches the server.
//
// Start reading at [Shim.Call] (call.go). A call on its way is a run (run.go), and its
// parts are: the caller that waits on this replica (caller.go); the creation of its
// record (create.go); the stored record, with the changes of the run (record.go); the
// inbox, which reads the record after others have changed it (inbox.go); the mailbox with
// the server's questions (ask.go); the rounds of a server that asks with its result
// (rounds.go); and the outbox, which writes the status message (outbox.go) and the pieces
// that the server streams (pieces.go, batcher.go). A run ends in settle.go, and
// recover.go goes on with one that was taken over. core.go has the state that all runs of
// a replica share. Above the runs, the [Shim] takes over tasks (adopt.go), and readers
// follow tasks by a [Set] (follow.go, follower.go).
//
// The life of a task (task.go has the transitions):
//
//	             ┌────────────────┐
//	create ────▶ │    working     │ ◀───────────┐
//	             └────────────────┘             │ answered
//	               │      │     └──────▶ ┌────────────────┐
//	               │      │     asked    │ input_required │
//	               │      │              └────────────────┘
//	               ▼      ▼                     │
//	 completed · failed · cancelled ◀───────────┘
//
// A task that has reached completed, failed or cancelled never changes again.
package shim
