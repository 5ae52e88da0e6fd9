package operator

import (
	"context"
	"errors"
	"time"
)

// Source is where the interface learns what it tells.
type Source interface {
	// Tasks returns a page. ErrCursor.
	Tasks(ctx context.Context, q Query) (Tasks, error)
	// Task returns one task; content says whether arguments, results, questions and answers are wanted. ErrUnknown.
	Task(ctx context.Context, id string, content bool) (TaskDetail, error)
	// Cancel cancels one, in the name of an operator. ErrUnknown, ErrEnded.
	Cancel(ctx context.Context, id, operator string) (Task, error)
	// Questions returns the open questions.
	Questions(ctx context.Context, content bool) (Questions, error)
	// Replicas, Upstreams and Stats return what the replicas say. Stats of "" are those of all upstreams.
	Replicas(ctx context.Context) (Replicas, error)
	Upstreams(ctx context.Context) (Upstreams, error)
	Stats(ctx context.Context, upstream string) (Stats, error)
	// Changes calls changed each time that something may have changed, until ctx ends.
	Changes(ctx context.Context, changed func()) error
}

// Errors of a Source. Any other error means that the store is unavailable.
var (
	ErrUnknown = errors.New("no such task")
	ErrEnded   = errors.New("the task has ended")
	ErrCursor  = errors.New("not a cursor of these filters and this order")
)

// Query says which tasks are wanted.
type Query struct {
	Upstream, Tool string
	Statuses       []string
	Principal      *string // nil for anybody's
	Replica        string
	ID             string // how it begins
	// Before and After bound when they were made; zero for no bound.
	Before, After time.Time
	Unknown       bool // those with an unknown outcome alone
	Oldest        bool // first; else the newest
	Limit         int
	Cursor        string
}
