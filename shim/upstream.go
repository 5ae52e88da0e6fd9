package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/shim/job"
)

// ErrDetached is the cause that ends a call's context when this replica lets go of the call but the
// call goes on (drain, lease lost): the upstream client closes its sockets silently. Any other cause
// cancels the call upstream (design.md 0.6).
var ErrDetached = errors.New("detached from the upstream call")

// Session says in whose name, and with which abilities, a request reaches an upstream. A legacy
// upstream fixes abilities per session, so an upstream client keeps one upstream session per Key and
// Capabilities (design.md 0.16, protocol.md H4, H5).
type Session struct {
	// Key names the upstream session: a legacy client's session, or a principal.
	// "" asks for a session of this call's own.
	Key string
	// Principal is the subject of the caller; "" for an anonymous one.
	Principal string `json:",omitempty"`
	// Mark tells apart callers whose requests carry different headers to the server, and keeps their
	// upstream sessions apart; "" for none.
	Mark string `json:",omitempty"`
	// Token names the tokens that may stand in for the one that the call came with, in the terms of the
	// code that knows tokens; "" for a call without one.
	Token string `json:",omitempty"`
	// Shared says that every replica uses one upstream session under Key: that of a legacy client's
	// session, which may go on anywhere.
	Shared bool
	// Legacy says that the client began in the legacy era. A server with both eras is spoken to in the
	// era of its client (design.md 0.27).
	Legacy bool `json:",omitempty"`
	// Capabilities are the ClientCapabilities to declare, as JSON; nil means {}.
	Capabilities json.RawMessage `json:",omitempty"`
	// ClientInfo is the Implementation object of the client, as JSON; nil means
	// the gateway's own.
	ClientInfo json.RawMessage `json:",omitempty"`
}

// Request is one request for an upstream, free of any client's envelope: the gateway has removed all
// that is between it and its client only (ids, progress tokens, protocol _meta keys, task). The
// upstream client adds its own.
type Request struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
	// Name is the tool, prompt or URI that Params name, for Mcp-Name and spans.
	Name string `json:"name,omitempty"`
	// Shown is the name by which the client has called the tool, if the server is called by another one (Name): the
	// reply names this one. "" for the same.
	Shown string `json:"shown,omitempty"`
	// Says is what the server says of the tool, if the policy depends on that (Policy).
	Says    Hints   `json:"says,omitzero"`
	Session Session `json:"session"`
	// Progress and LogLevel select what the caller hears meanwhile: progress notifications, and log
	// messages from this RFC 5424 level on ("" for none).
	Progress bool   `json:"progress,omitempty"`
	LogLevel string `json:"logLevel,omitempty"`
	// Relay says that an InputRequiredResult may be handed back as it is, to a
	// client that can answer it (protocol.md 2.7).
	Relay bool `json:"-"`
	// Rounds says that the Sink can be asked. Two things follow. The questions of an
	// InputRequiredResult are returned in Reply.Round; they are answered, and the request is made again
	// with Retry. And questions are heard that a legacy server asks outside the stream of the call
	// (design.md 0.16).
	Rounds bool   `json:"-"`
	Retry  *Retry `json:"-"`
	// NoTask says that the call stays without a task: its caller waits, and hears progress until the
	// reply.
	NoTask bool `json:"-"`
	// Within is how long the call may take at most, 0 for no bound: a server that makes a task of it is
	// asked to keep the task for so long.
	Within time.Duration `json:"-"`
	// Job says how the job is followed that the call starts, until its result is the reply; nil for a call whose answer
	// is the reply. The job's id is in a checkpoint, from which any replica goes on.
	Job *job.Rules `json:"-"`
	// IfRepeatable makes the call only if the server says now that a second one does no harm (Hints.Idempotent). Otherwise
	// ErrNotRepeatable is the outcome.
	IfRepeatable bool `json:"-"`
	// Limits bound the server's questions that reach the Sink. The upstream client refuses those that
	// exceed them (QuestionLimits.Refuse); for rounds, the caller does.
	Limits QuestionLimits `json:"-"`
}

// Hints are what a server says of a tool in its annotations. The zero value is that of a tool of which it says nothing:
// the defaults of MCP, which are the careful ones.
type Hints struct {
	ReadOnly   bool `json:"readOnly,omitempty"`   // it changes nothing; then it is additive and idempotent as well
	Additive   bool `json:"additive,omitempty"`   // it deletes and overwrites nothing
	Idempotent bool `json:"idempotent,omitempty"` // a second call with the same arguments changes nothing more
	Closed     bool `json:"closed,omitempty"`     // it deals with nothing outside of the server's own domain
}

// Round is the content of an InputRequiredResult (protocol.md 2.7).
type Round struct {
	// Questions have the server's own names as keys. The list may be empty: then the server only wants
	// to be called again, a little later.
	Questions []Question
	// State is to be sent back as it is, JSON; nil for nothing.
	State json.RawMessage
	// Again says that the server has no use for the answers: it has not begun the request, and wants it
	// once the questions are settled (-32042).
	Again bool
}

// Retry has the parts of a repeated request: the answers by the server's own names, and its state. They
// replace those in the params.
type Retry struct {
	Answers map[string]json.RawMessage
	State   json.RawMessage
}

// RPCError is a JSON-RPC error of an upstream, or of the gateway in its place.
type RPCError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error makes an RPCError usable as an error.
func (e *RPCError) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// Reply is an upstream's answer: a result, or a JSON-RPC error.
type Reply struct {
	// Result is the result object as received. Nil when Error is set.
	Result json.RawMessage
	Error  *RPCError
	// InputRequired says that Result is an InputRequiredResult, and Round has its content: with neither
	// Request.Relay nor Request.Rounds it has no questions. Round comes with Error if its questions
	// must be settled before the request is begun (Round.Again).
	InputRequired bool
	Round         *Round
	// IsError says that Result is a CallToolResult with isError true.
	IsError bool
	// Plain says that Result is complete and has neither _meta nor requestState, and Typed that it has
	// a resultType: code that changes those can skip the search.
	Plain, Typed bool
}

// Progress is one progress notification.
type Progress struct {
	Progress float64
	Total    float64 // 0 when unknown
	Message  string
	// Raw are the notification's params as received, with the upstream client's own token.
	Raw json.RawMessage
	// Status says that Message is the status message of a task of the server, and so is left out of the
	// pieces.
	Status bool
	// Checkpoint is where the upstream client could resume after this notification, or nil. The
	// upstream client may go on before it is stored.
	Checkpoint json.RawMessage
}

// RaiseProgress returns the params of a progress notification for a client that was told others before; nil if they say
// nothing new. Under one token the value has to rise (protocol.md 2.9). Some servers say a new text with the same value
// (openchrome #954), or begin again at 0: the text goes out with a value a little above the last one. Params without a
// number stay as they are.
func RaiseProgress(params, before json.RawMessage) json.RawMessage {
	number := func(params json.RawMessage) (float64, error) {
		n, _ := jsonrpc.Get(params, "progress")
		return strconv.ParseFloat(string(n), 64)
	}
	n, err := number(params)
	last, none := number(before)
	if err != nil || none != nil || n > last {
		return params
	}
	text, _ := jsonrpc.GetString(params, "message")
	told, _ := jsonrpc.GetString(before, "message")
	next := last + max(progressStep, math.Abs(last)*progressShare)
	if text == "" || text == told || math.IsInf(next, 1) {
		return nil
	}
	params, _ = jsonrpc.Set(params, strconv.AppendFloat(nil, next, 'g', 15, 64), "progress")
	return params
}

// The least by which progress is raised, as a number and as a share of the last value. Both are far above the steps of
// the gateway's own progress, which a client hears meanwhile.
const (
	progressStep  = 1e-4
	progressShare = 1e-12
)

// Log is one log notification (notifications/message).
type Log struct {
	Level string
	Raw   json.RawMessage // the notification's params as received
}

// Answer is the client's answer to a Question: its result, or its error.
type Answer struct {
	Result json.RawMessage
	Error  *RPCError
}

// Sink takes the messages of an upstream before its answer. The upstream client calls Progress and Log
// one at a time, and they do not block on the network. Ask and Checkpoint may come from other
// goroutines meanwhile, each from one at a time: a server may ask beside the stream of the call
// (Request.Rounds).
type Sink interface {
	Progress(Progress)
	Log(Log)
	// RoomToAsk makes room for questions with so many bytes of params, in all that the call waits with. It reports whether
	// there is: else the server is told so, before anything of the question is kept. It does not block.
	RoomToAsk(bytes int) bool
	// Ask puts questions to the client and blocks until each is answered, refused,
	// withdrawn or out of time. ErrNoAsk says that this client cannot be asked.
	Ask(ctx context.Context, q ...Question) ([]Answer, error)
	// Withdraw says that the server no longer waits for the answer to a question of the current Ask, or
	// of one that is about to begin. It comes from any goroutine, and does not block.
	Withdraw(key string)
	// Checkpoint takes the data that resumes the call on another replica. It does not block. A newer
	// checkpoint, also one from Progress, replaces an older one. The function that it returns waits
	// until this one, or a newer one, is in the record. The first one is stored before the first byte
	// is written, and so records that the call was sent: if that fails, the call must not be sent.
	Checkpoint(cp json.RawMessage) (stored func(context.Context) error)
}

// ErrNoAsk: the caller declared no way to answer this kind of question.
var ErrNoAsk = errors.New("the client cannot be asked")

// Completer is a Sink, or an Asker, that wants to hear that an elicitation by URL is complete, if the
// server says so beside the answer and the session has no listener for it (Filter). It is apart from
// Sink, since only a client that waits on a stream needs it. It is called from any goroutine, and does
// not block.
type Completer interface {
	// Completed takes the params of notifications/elicitation/complete.
	Completed(params json.RawMessage)
}

// Notifier is a Sink, or a Stream, that takes notifications on the stream of the call whose method the
// gateway does not know. Like Log, it does not block.
type Notifier interface {
	Notified(Notification)
}

// Corker is a Sink, or a Stream, that can hold messages back: those between Cork(true) and Cork(false) go out
// together. Like Log, it does not block.
type Corker interface {
	Cork(yes bool)
}

// Placed is a Sink whose call has a place among the calls in flight (Server.Concurrency). The upstream client gives the
// place back while it follows a job, and takes one for each request. Both come from the goroutine of the call.
type Placed interface {
	LeavePlace()
	// TakePlace waits for a place. It fails only with the cause that ended ctx.
	TakePlace(ctx context.Context) error
}

// Notification is a JSON-RPC notification, from or to an upstream.
type Notification struct {
	Method string
	Params json.RawMessage
}

// Filter selects the notifications of a Listen.
type Filter struct {
	ToolsListChanged     bool
	PromptsListChanged   bool
	ResourcesListChanged bool
	Resources            []string // URIs
	Log                  bool     // logging messages outside of any call
	Elicitations         bool     // that an elicitation by URL is complete (2025-11-25)
}

// Upstream reaches one MCP server. The suite shimtest.Upstream is the contract in executable form.
// Errors are *UpstreamError if an exchange with the server failed or was not MCP; a JSON-RPC error of
// the server is a Reply.
type Upstream interface {
	// Call sends one request and blocks for its reply. A tools/call is sent exactly once (design.md
	// 0.11). When ctx ends, the call is cancelled upstream unless the cause is ErrDetached. An
	// UpstreamError that is Unsent and wraps ErrUnavailable says that the upstream client could not get
	// what it needs from the store: the call may be made again.
	Call(ctx context.Context, r Request, s Sink) (Reply, error)
	// Resume goes on with a call from a checkpoint, possibly one of another replica. ErrNotResumable
	// says that the call's fate can no longer be learned.
	Resume(ctx context.Context, r Request, checkpoint json.RawMessage, s Sink) (Reply, error)
	// Resumable reports whether a Resume from a checkpoint that was handed over can make sense: if
	// false, every replica would answer ErrNotResumable. It works without a request, and does not
	// promise that Resume succeeds.
	Resumable(checkpoint json.RawMessage) bool
	// Notify sends a notification in a session that exists.
	Notify(ctx context.Context, s Session, n Notification) error
	// Listen hands over notifications that belong to no call, until ctx ends. ready is called once with
	// the filter that the server agreed to.
	Listen(ctx context.Context, s Session, f Filter, ready func(Filter), on func(Notification)) error
}

// ErrNotResumable is an error of Upstream.Resume.
var ErrNotResumable = errors.New("the upstream call cannot be resumed")

// ErrNotRepeatable is an error of a call with Request.IfRepeatable, which was not made.
var ErrNotRepeatable = errors.New("the server does not say that a second call does no harm")

// UpstreamError says why an exchange with an upstream failed. Its Message is free of addresses, headers and bodies
// of the upstream.
type UpstreamError struct {
	// Kind is a low-cardinality label: one of the kinds below, or lost (with its replica), shutdown (of
	// its replica).
	Kind string
	// Message is for the client and the log. Said is for the client, and those who may see its task: the server's
	// own words, which may quote a request. Err, which may name addresses, is for the log alone.
	Message, Said string
	Err           error
	// RetryAfterMs is when to come back, for Kind overloaded, and unreachable while the gateway pauses
	// before a new start; 0 if unknown.
	RetryAfterMs int64
	// Unsent says that the server has certainly not begun the call.
	Unsent bool
}

// Kinds of UpstreamError.
const (
	KindUnreachable = "unreachable"
	KindTimeout     = "timeout"
	KindRefused     = "refused"    // 401, 403
	KindOverloaded  = "overloaded" // 429, 503
	KindProtocol    = "protocol"   // not MCP
	KindTooLarge    = "too_large"
	KindClosed      = "closed"  // the stream ended before the answer
	KindSession     = "session" // lost
)

// Error gives the text for the log.
func (e *UpstreamError) Error() string {
	if e.Err == nil {
		return e.Kind + ": " + e.Message
	}
	return e.Kind + ": " + e.Message + ": " + e.Err.Error()
}

// TellClient gives the text for the client.
func (e *UpstreamError) TellClient() string {
	if e.Said == "" {
		return e.Message
	}
	return e.Message + ": " + e.Said
}

// Unwrap returns the cause.
func (e *UpstreamError) Unwrap() error { return e.Err }

// CodeInternal is JSON-RPC's internal error, the code of every failure besides the server's own errors
// (design.md 0.5).
const CodeInternal = -32603

// Object returns the error as JSON, its data untouched.
func (e *RPCError) Object() json.RawMessage {
	b := append([]byte(`{"code":`), strconv.FormatInt(e.Code, 10)...)
	b = append(b, `,"message":`...)
	b = jsonrpc.AppendString(b, e.Message)
	if e.Data != nil {
		b = append(append(b, `,"data":`...), e.Data...)
	}
	return append(b, '}')
}

// CallTool is the one method whose requests may become tasks.
const CallTool = "tools/call"

// Tool returns the tool that the request calls, "" for none.
func (r Request) Tool() string {
	if r.Method != CallTool {
		return ""
	}
	return r.Name
}
