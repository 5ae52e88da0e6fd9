package chaos

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
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
	// about asks a gateway what it has: the capabilities and the tools. A fresh client
	// knows nothing of the gateways before.
	about(ctx context.Context, addr string, fresh bool) error
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

// isMissing reports whether the state says that the store does not have the task: just now, or, where it has ended, for
// good.
func (s state) isMissing() bool {
	return strings.HasPrefix(s.message, "the store does not have the task just now") ||
		s.err != nil && strings.HasPrefix(s.err.Message, "the gateway was restarted, or its store has lost the task")
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

// transport carries the requests of one client, with its key. Most gateways ask for none.
type transport struct {
	http.Transport
	token string
}

func newTransport() *transport {
	return &transport{Transport: http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 5 * time.Second}, token: token}
}

// another carries the requests of the same user over connections of its own.
func (t *transport) another() *transport {
	a := newTransport()
	a.token = t.token
	return a
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+t.token)
	return t.Transport.RoundTrip(r)
}
