package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/sealed"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"

	"golang.org/x/time/rate"
)

// Bounds of the subscriptions of a client, in one session or by one subscriptions/listen. Each
// subscription is kept for as long as the client listens.
const (
	MaxSubscriptions = 1000
	// MaxURI bounds the URI of a resource, in bytes: the longest path that servers take.
	MaxURI = 8 << 10
)

// RelistAge is the age up to which a list of tools counts as the present one. A client that always
// sends wrong headers has the tools listed once in that time.
const RelistAge = time.Second

// CheckSubscription refuses a subscription to a resource whose URI is too long, or of a client that has as
// many of them as it may have.
func CheckSubscription(uri string, has int) error {
	switch {
	case len(uri) > MaxURI:
		return &shim.BusyError{Key: "max_uri", Limit: "bytes in the URI of a subscription"}
	case has >= MaxSubscriptions:
		return &shim.BusyError{Key: "max_subscriptions", Limit: "subscriptions"}
	}
	return nil
}

// Endpoint is one upstream as clients see it, at its own path. The gateway makes one for each,
// before the first request. Fields that may change later guard themselves; the others are only
// read.
type Endpoint struct {
	// Name is the configured one.
	Name   string
	Config *config.Upstream
	Global *config.Config
	// Before says that the previous configuration offered tasks, so they are still read.
	Before bool
	// Upstream is how the server is reached, apart from tools/call, which goes through Shim.
	Upstream upstream.Client
	Shim     Shim

	Telemetry *wire.Telemetry
	Log       *slog.Logger
	// Calls bounds the requests in flight that wait for a server or for a task.
	Calls *shim.Bound
	// Streams are the responses that stay open until the gateway closes.
	Streams *wire.Streams
	// State seals the way back to a call that waits for input; nil if clients get no states.
	State *sealed.Keyring

	// Watchers hear when a reload shows them other tools.
	Watchers *Watchers

	// Relist says when the tools may be listed because of a mismatch.
	Relist rate.Sometimes

	identity atomic.Pointer[json.RawMessage]
	dropped  sync.Map // the names of tools that the log has said to be left out
}

// KeptProgress is the progress that a client with a token hears of a request in any case.
func (e *Endpoint) KeptProgress(method, name string, token json.RawMessage) wire.KeptProgress {
	about := name
	switch {
	case method == mcp.MethodTasksResult || method == mcp.MethodToolsCall && name == TaskResultTool:
		about = "the task"
	case name == "":
		about = method
	}
	return wire.KeptProgress{Token: token, Every: e.Global.ProgressKeepAlive, About: about}
}

// Identify sets the serverInfo of results to modern clients: the upstream's own as soon as it is
// known, and the gateway's before, so that tasks can be read while their upstream is down.
func (e *Endpoint) Identify(info json.RawMessage) { e.identity.Store(&info) }

// Identity is the value given to Identify last.
func (e *Endpoint) Identity() json.RawMessage { return *e.identity.Load() }

// Convertible reports whether any tool of this upstream may become a task, or might before. If so,
// tasks are offered, with partial results.
func (e *Endpoint) Convertible() bool { return e.Before || e.Config.MakesTasks() }

// MayBeTask reports whether a tool may be called as a task (L4), by its entry in the list of tools.
func (e *Endpoint) MayBeTask(tool json.RawMessage) bool {
	return e.ListedPolicy(tool).Tasks != config.TasksNever
}

// ListedPolicy is the policy of a tool, by its entry in the list of tools.
func (e *Endpoint) ListedPolicy(tool json.RawMessage) config.Tool {
	name, _ := jsonrpc.GetString(tool, "name")
	return e.Config.Tool(name, reading.HintsOf(tool))
}

// TasksOf reports whether the server may make tasks of its own of calls, by the extension (T1, T4).
func (e *Endpoint) TasksOf(s upstream.Description) bool {
	_, offers := jsonrpc.Get(s.Capabilities, "extensions", mcp.ExtensionTasks)
	return offers && s.Era == mcp.Modern && e.Config.UpstreamTasks != config.UpstreamTasksNever
}

// LogFailure logs what stays hidden from a client, once and here at the edge: the cause of an
// upstream's failure, and errors of the gateway's own. Mistakes of clients are left out.
func (e *Endpoint) LogFailure(ctx context.Context, method string, err error) {
	var (
		known    *wire.Failure
		answered *shim.RPCError
	)
	switch f := wire.FailureOf(mcp.Version20260728, err); {
	case errors.As(err, &known), errors.As(err, &answered):
		return
	case f.Refuses(): // signing in begins this way
		e.Log.DebugContext(ctx, "the server refused a client", "method", method, "err", err)
		return
	case f.Code != mcp.CodeInternal:
		return
	}
	if full, ok := errors.AsType[*shim.BusyError](err); ok && full.Key != "" { // wire.Telemetry.Refused has logged it
		return
	}
	if down, ok := errors.AsType[*shim.UpstreamError](err); ok && (down.Kind == shim.KindUnreachable || down.Kind == shim.KindOverloaded) {
		e.Telemetry.Failing(ctx, e.Name, down.Kind, e.Log, err)
		return
	}
	e.Log.WarnContext(ctx, "request failed", "method", method, "err", err)
}

// LogDropped logs once that a tool is left out, and why.
func (e *Endpoint) LogDropped(ctx context.Context, name string, reason error) {
	if _, again := e.dropped.LoadOrStore(name, true); !again {
		e.Log.WarnContext(ctx, "tool is not offered to clients", "tool", name, "reason", reason)
	}
}
