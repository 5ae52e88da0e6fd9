package chaos

import (
	"context"
	"encoding/json"
	"time"

	"taskgate/internal/taskclient"
)

// dialect is how a client speaks of tasks. A gateway that answers with a JSON-RPC
// error is a *taskclient.Error; any other error says that no answer came.
type dialect interface {
	name() string
	// endpoint is the path of the endpoint that it calls.
	endpoint() string
	// call makes the call of a user, beginning at one gateway: either its result or
	// the task that was made of it.
	call(ctx context.Context, u *user, addr string) (json.RawMessage, *state, error)
	// get asks for the state of a task.
	get(ctx context.Context, addr, id string) (state, error)
	// wait returns once the gateway says that the task has changed or ended, or has
	// ended the wait for a reason of its own.
	wait(ctx context.Context, addr, id string) error
	cancel(ctx context.Context, addr, id string) error
	// answer hands in the answer to a question that the state of a task has shown.
	answer(ctx context.Context, addr, id, key, value string, strange bool) error
	// reconnect drops all connections.
	reconnect()
}

// state is a task as a client sees it, in the words of the extension.
type state struct {
	id      string
	status  string
	message string
	created time.Time
	updated time.Time
	ttl     time.Duration
	result  json.RawMessage
	err     *taskclient.Error
	asked   map[string]string // the questions that it shows: their names, by key
}

// waitsForInput is the status of a task that asks.
const waitsForInput = "input_required"

// ended reports whether the state is final.
func (s state) ended() bool {
	return s.status == taskclient.Completed || s.status == taskclient.Failed || s.status == taskclient.Cancelled
}

// The paths of the endpoints, one for each upstream.
const (
	pathChaos  = "/mcp"
	pathRounds = "/rounds"
)

// at is the part of a client's name that says where it is.
func at(path string) string {
	if path == pathRounds {
		return ", rounds"
	}
	return ""
}

// streams reports whether a client has results streamed.
func streams(d dialect) bool {
	l, ok := d.(*legacy)
	return ok && l.segments
}
