// Package runner makes one call, from its sending to its end: a [Run]. The package above says
// when a run begins, hands it to a caller who waits, and wakes it with news of its record; a run
// asks for nothing in return but the replica that it is on.
//
//	caller ◀── Caller ──┐                     ┌── Progress, Log, Ask, Checkpoint ── server
//	                    │                     ▼              (a Run is its Sink)
//	                    └──────────────▶     Run     ──▶ Upstream.Call, Resume
//	                                          │
//	          Creation · box · outbox ── copy of the record ── turn ──▶ record in the store
//	                           Inbox ◀────────┘
//
// Start reading at life.go. The parts of a run each have the state for one piece of work: the caller that waits on this
// replica (caller.go), the creation of the record (create.go), the copy of it with its changes (record.go), the inbox,
// which reads it after others have changed it (inbox.go), the mailbox with the server's questions
// (ask.go), the rounds of a server that asks with its result (rounds.go), and the outbox, which
// writes the status message (outbox.go) and the pieces that the server streams (pieces.go,
// batcher.go). A run ends in settle.go; recover.go goes on with one that was taken over.
//
// Two things keep its goroutines apart. run.mu guards the state, for moments. The turn is held by
// whoever speaks with the store about the record: a state that comes in is newer than those before.
package runner
