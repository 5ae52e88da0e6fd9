package operator

import (
	"context"

	"taskgate/shim"
)

// Source is where the interface gets its data. Any error but the named ones means that the store is
// unavailable.
type Source interface {
	TaskSource
	PlaceSource
}

// TaskSource has the tasks.
type TaskSource interface {
	// Tasks returns a page. shim.ErrCursor.
	Tasks(ctx context.Context, q shim.Query) (Tasks, error)
	// Totals counts the tasks of a query, of any state.
	Totals(ctx context.Context, q shim.Query) (Totals, error)
	// Task returns one task; content says whether it includes arguments, results, questions and answers.
	// shim.ErrNotFound.
	Task(ctx context.Context, id string, content bool) (TaskDetail, error)
	// Cancel cancels one task, in the name of an operator. shim.ErrNotFound, shim.ErrFinal.
	Cancel(ctx context.Context, id, operator string) (Task, error)
	// Rerun runs the call of a task again, in the name of an operator. *shim.ChangeError, *shim.BusyError,
	// shim.ErrNotFound, shim.ErrDraining.
	Rerun(ctx context.Context, id, operator string) (old, made Task, err error)
	// Questions returns the open questions.
	Questions(ctx context.Context, content bool) (Questions, error)
	// Changes calls changed after each possible change, until ctx ends.
	Changes(ctx context.Context, changed func()) error
}

// PlaceSource has where they run.
type PlaceSource interface {
	// Replicas, Upstreams and Stats return what the replicas report. Stats of "" are those of all upstreams.
	Replicas(ctx context.Context) (Replicas, error)
	Upstreams(ctx context.Context) (Upstreams, error)
	Stats(ctx context.Context, upstream string) (Stats, error)
	// Store returns how the store is, also if it does not answer.
	Store(ctx context.Context) (Store, error)
	// Clients returns who sends requests, and who holds what.
	Clients(ctx context.Context) (Clients, error)
	// Pause pauses the calls of an upstream, or of a tool of it, in the name of an operator, and returns the pause that
	// counts; Resume ends a pause and returns it. *shim.ChangeError.
	Pause(ctx context.Context, upstream, tool, operator string) (Pause, error)
	Resume(ctx context.Context, upstream, tool string) (Pause, error)
}
