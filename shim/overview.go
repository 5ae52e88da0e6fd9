package shim

import (
	"context"
	"time"
)

// Query selects the calls and tasks that an operator wants to see. Zero fields let all through.
type Query struct {
	Upstream string
	Tool     string // or the method, for other requests than tools/call
	States   []State
	Owner    *string
	// Lists are the list keys of the Owner. If there are some, only tasks with a list key are found.
	Lists   []string
	Replica Replica // runs them, so they are still open
	Prefix  string  // of the id
	// Before and After bound the time of creation. EndedAfter lets only those through that have ended since then.
	Before, After, EndedAfter time.Time

	Oldest bool // first; else the newest
	Limit  int
	Cursor string // from the page before, with the same Query; "" for the first page
}

// Standing is a store's knowledge of a replica.
type Standing struct {
	Replica Replica
	Alive   bool
	Seen    time.Time // its last heartbeat
	Running int       // the calls that it is to run
	About   []byte    // its last Report; nil once that has expired
}

// Overview has the operations of a store for operators, beyond those of a Store. Calls and tasks do not
// depend on it. Every method may return ErrUnavailable.
type Overview interface {
	// Search returns a page of summaries, by time of creation, with the cursor of the next ("" after the
	// last). A cursor stays valid while tasks come and go. A page may be short, or empty, if the search had
	// to go through many tasks. Hidden calls are found as well. ErrCursor.
	Search(ctx context.Context, q Query) ([]Task, string, error)
	// Sweep forgets some entries that Search looks through but whose tasks are gone.
	Sweep(ctx context.Context) error
	// Report publishes a text about a replica to all replicas, for a time.
	Report(ctx context.Context, r Replica, about []byte, keep time.Duration) error
	// Replicas returns those that are alive, and the lost ones that are still known, by name.
	Replicas(ctx context.Context) ([]Standing, error)
	// Note keeps a replica's note about a minute, in place of an earlier one.
	Note(ctx context.Context, r Replica, minute time.Time, note []byte, keep time.Duration) error
	// Notes returns those of all replicas about some minutes, in their order.
	Notes(ctx context.Context, minutes []time.Time) ([]map[Replica][]byte, error)
	// Changes calls changed when some task has changed, or may have changed unnoticed, until ctx ends.
	Changes(ctx context.Context, changed func()) error
}
