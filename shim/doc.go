// Package shim has the words in which the gateway, the store and the servers speak about
// tasks: what a client asks for ([Call]) and gets ([Answered]), what a task is ([Task]) and how
// it changes ([Change]), what is asked of a client ([Question]), and the operator's [Policy].
// It decides nothing and keeps nothing. Whoever stands next to the packages that decide
// implements one of its interfaces: a [Store] knows Redis, an [Upstream] reaches a server, and
// a [Sink] hears what the server says.
//
// The packages below it decide, each behind one door:
//
//	gateway ──▶ shim/engine ──▶ shim/runner ──▶ gateway/upstream   (an Upstream)
//	              the door       one call  │
//	                 └───▶ shim/node ◀─────┴───▶ redisstore         (a Store)
//	                       one replica
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
