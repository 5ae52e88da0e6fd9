package endpoint

import (
	"context"
	"encoding/json"

	"taskgate/shim"
)

// Shim is what the gateway uses of an engine.Shim, which says what each method does. Tests have other
// implementations.
type Shim interface {
	Calls
	Tasks
	Following
	Questions
}

// Calls runs requests of clients, and questions outside of them.
type Calls interface {
	Call(ctx context.Context, c shim.Call) (shim.Answered, error)
	Reattach(ctx context.Context, c shim.Call, id shim.ID, answers map[string]json.RawMessage) (shim.Answered, error)
	IsSlow(upstream string) bool
	AskSession(ctx context.Context, c shim.Call, checkpoint json.RawMessage, done func(id shim.ID, over bool)) (shim.ID, error)
	ResumeStream(ctx context.Context, r shim.Repeat)
}

// Tasks reads and cancels tasks. Outlast repeats an operation that needs the store.
type Tasks interface {
	Outlast(ctx context.Context, do func(context.Context) error) error
	Get(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error)
	Find(ctx context.Context, p shim.Principal, upstreams []string, id shim.ID) (shim.Task, error)
	Peek(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error)
	List(ctx context.Context, p shim.Principal, upstream, cursor string) ([]shim.Task, string, error)
	Cancel(ctx context.Context, p shim.Principal, upstream string, id shim.ID) (shim.Task, error)
	Wait(ctx context.Context, p shim.Principal, upstream string, id shim.ID, seen func(shim.Task)) (shim.Task, error)
}

// Following tells of tasks as they change. A Set takes new tasks while it is followed; Track follows a fixed list.
type Following interface {
	NewSet(p shim.Principal, upstream string, tasks ...shim.Tracked) shim.Set
	Track(ctx context.Context, p shim.Principal, upstream string, tasks []shim.Tracked, yield func(shim.Update) error) error
}

// Questions answers the questions of tasks and of calls, and says which are open.
type Questions interface {
	Update(ctx context.Context, p shim.Principal, upstream string, id shim.ID, results map[string]json.RawMessage) error
	Answer(ctx context.Context, p shim.Principal, upstream string, id shim.ID, key string, a shim.Answer) error
	Outstanding(ctx context.Context, p shim.Principal, upstream string, id shim.ID) ([]shim.Question, error)
}
