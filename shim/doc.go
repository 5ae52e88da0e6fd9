// Package shim decides: it turns a synchronous call to an upstream into a
// task, keeps the task going without the client that asked for it, and says who
// may see it.
//
// It knows what a task is, when one is made, who owns it, which replica runs it
// and what happens when that replica is gone. It does not know HTTP, Redis, YAML,
// or which dialect of tasks a client speaks: the gateway speaks, a [Store]
// remembers, an [Upstream] reaches the server.
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
