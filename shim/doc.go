// Package shim decides: it turns a synchronous call to an upstream into a
// task, keeps the task going without the client that asked for it, and says who
// may see it. Calls of clients come in, with what the operator wants of a tool; replies,
// tasks and their changes go out.
//
// It knows what a task is, when one is made, who owns it, which replica runs it
// and what happens when that replica is gone. It does not know HTTP, Redis, YAML,
// or which dialect of tasks a client speaks: the gateway speaks, a [Store]
// remembers, an [Upstream] reaches the server.
//
// Start reading at [Shim.Call] (call.go). A call on its way is a run (run.go), and its parts
// are: the caller who waits for it here (caller.go); the creation of its record (create.go);
// the record, as its only writer has it (record.go); the inbox, which reads the record when
// others have changed it (inbox.go); the mailbox, with the questions of the server (ask.go);
// the rounds of a server that asks with its result (rounds.go); the status message
// (status.go); and the pieces that it streams (pieces.go, batcher.go). How it ends is in
// settle.go, and how one goes on that was taken over in recover.go. What runs share of their replica is in
// core.go. Above them, the [Shim] takes over tasks (adopt.go), and readers follow tasks by a [Set] (follow.go,
// follower.go).
//
// The life of a task, as the transitions of task.go have it:
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
