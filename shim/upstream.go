package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"taskgate/internal/jsonrpc"
)

// ErrDetached is the cause with which a call's context ends when this replica
// stops caring for it but the call shall go on (drain, lease lost): the upstream client closes
// its sockets and tells the upstream nothing. Any other cause cancels the call
// upstream (design.md 0.6).
var ErrDetached = errors.New("detached from the upstream call")

// Session says in whose name, and with which abilities, a request reaches an
// upstream. A legacy upstream fixes abilities per session, so an upstream client keeps one
// upstream session per Key and Capabilities (design.md 0.16, protocol.md H4, H5).
type Session struct {
	// Key names the upstream session: a legacy client's session, or a principal.
	// "" asks for a session of this call's own.
	Key string
	// Principal is the subject of the caller; "" for an anonymous one.
	Principal string `json:",omitempty"`
	// Mark tells apart callers whose requests carry other headers to the server; "" for none.
	// They share no upstream session.
	Mark string `json:",omitempty"`
	// Token says which tokens may stand in for the one that the call came with, in the words of
	// whoever knows tokens; "" for a call that came with none.
	Token string `json:",omitempty"`
	// Shared says that every replica uses one upstream session under Key: it is that
	// of a legacy client's session, which may go on anywhere.
	Shared bool
	// Legacy says that the client began in the legacy era. A server that speaks both eras
	// is spoken to in the one of its client (design.md 0.27).
	Legacy bool `json:",omitempty"`
	// Capabilities are the ClientCapabilities to declare, as JSON; nil means {}.
	Capabilities json.RawMessage `json:",omitempty"`
	// ClientInfo is the Implementation object of the client, as JSON; nil means
	// the gateway's own.
	ClientInfo json.RawMessage `json:",omitempty"`
}

// Request is one request for an upstream, free of any client's envelope: the
// gateway has removed what only meant something between it and its client (ids,
// progress tokens, protocol _meta keys, task). The upstream client adds its own.
type Request struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
	// Name is the tool, prompt or URI that Params name, for Mcp-Name and spans.
	Name    string  `json:"name,omitempty"`
	Session Session `json:"session"`
	// Progress and LogLevel say what the caller wants to hear meanwhile: progress
	// notifications, and log messages from this RFC 5424 level on ("" for none).
	Progress bool   `json:"progress,omitempty"`
	LogLevel string `json:"logLevel,omitempty"`
	// Relay says that an InputRequiredResult may be handed back as it is, to a
	// client that can answer it (protocol.md 2.7).
	Relay bool `json:"-"`
	// Rounds says that the Sink can be asked. Two things follow. The questions of an
	// InputRequiredResult are returned in Reply.Round; they are answered, and the request
	// is made again with Retry. And questions are heard that a legacy server does not ask
	// on the stream of the call (design.md 0.16).
	Rounds bool   `json:"-"`
	Retry  *Retry `json:"-"`
	// NoTask says that no task is made of the call: its caller waits, and hears progress until
	// the reply is there.
	NoTask bool `json:"-"`
	// Within is how long the call may take at most, 0 for no bound: a server that makes
	// a task of it is asked to keep that for so long.
	Within time.Duration `json:"-"`
	// Limits bound what the server may ask meanwhile, where that reaches the Sink. The
	// upstream client refuses what exceeds them (QuestionLimits.Refuse); for rounds, the
	// caller does.
	Limits QuestionLimits `json:"-"`
}

// Round is what a server asks for with an InputRequiredResult (protocol.md 2.7).
type Round struct {
	// Questions have the server's own names as keys. There may be none: then the
	// server only wants to be called again, a little later.
	Questions []Question
	// State is to be sent back as it is, JSON; nil for nothing.
	State json.RawMessage
	// Again says that the server does not want the answers: it has not begun the
	// request, and wants it once the questions are settled (-32042).
	Again bool
}

// Retry is what a request is made again with: the answers by the server's own names,
// and its state, in place of those that the params may have.
type Retry struct {
	Answers map[string]json.RawMessage
	State   json.RawMessage
}

// RPCError is a JSON-RPC error that an upstream answered, or that we answer in
// its place.
type RPCError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// Error makes an RPCError usable as an error.
func (e *RPCError) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// Reply is what an upstream answered: a result, or a JSON-RPC error.
type Reply struct {
	// Result is the result object as received. Nil when Error is set.
	Result json.RawMessage
	Error  *RPCError
	// InputRequired says that Result is an InputRequiredResult, and Round what is in it:
	// without Request.Relay or Request.Rounds it has no questions. Round comes with Error
	// where that says what is to be asked before the request is begun (Round.Again).
	InputRequired bool
	Round         *Round
	// IsError says that Result is a CallToolResult with isError true.
	IsError bool
	// Plain says that Result is complete and has no _meta and no requestState, and Typed that it
	// has a resultType: whoever changes those need not look through it.
	Plain, Typed bool
}

// Progress is one progress notification.
type Progress struct {
	Progress float64
	Total    float64 // 0 when unknown
	Message  string
	// Raw are the notification's params as received, with the upstream client's own token.
	Raw json.RawMessage
	// Status says that Message is the status message of a task of the server, and so no piece
	// of a result.
	Status bool
	// Checkpoint is where the upstream client could resume after this notification, or nil. It
	// need not be stored before the upstream client goes on.
	Checkpoint json.RawMessage
}

// Rises reports whether the params of a progress notification tell more than those of the
// one before, as they have to under one token (protocol.md 2.9). What has no number cannot
// be compared, and does.
func Rises(params, before json.RawMessage) bool {
	number := func(params json.RawMessage) (float64, error) {
		n, _ := jsonrpc.Get(params, "progress")
		return strconv.ParseFloat(string(n), 64)
	}
	n, err := number(params)
	last, none := number(before)
	return err != nil || none != nil || n > last
}

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

// Sink takes what an upstream says before it answers. The upstream client calls Progress and Log
// one at a time, and they do not block on the network. Ask and Checkpoint may come
// from other goroutines meanwhile, each from one at a time: a server may ask beside the
// stream of the call (Request.Rounds).
type Sink interface {
	Progress(Progress)
	Log(Log)
	// Ask puts questions to the client and blocks until each is answered, refused,
	// withdrawn or out of time. ErrNoAsk says that this client cannot be asked.
	Ask(ctx context.Context, q ...Question) ([]Answer, error)
	// Withdraw says that the server no longer waits for the answer to a question of the Ask under way, or
	// of one that is about to begin. It comes from any goroutine, and does not block.
	Withdraw(key string)
	// Checkpoint takes what the upstream client needs to resume the call on another
	// replica. It does not block. A newer checkpoint, also one from Progress, replaces an
	// older one. The function that it returns waits until this one, or a newer one, is in
	// the record. The first one is stored before the first byte is written, and so records that the call was
	// sent: if that fails, the call must not be sent.
	Checkpoint(cp json.RawMessage) (stored func(context.Context) error)
}

// ErrNoAsk: the caller declared no way to answer this kind of question.
var ErrNoAsk = errors.New("the client cannot be asked")

// Completer is a Sink, or an Asker, that wants to hear that an elicitation by URL is complete,
// where the server says so beside the answer and nobody listens in the session (Filter). It
// is no part of a Sink, since only what waits for a client on a stream has a use for it. From
// any goroutine; it does not block.
type Completer interface {
	// Completed takes the params of notifications/elicitation/complete.
	Completed(params json.RawMessage)
}

// Notifier is a Sink, or a Stream, that takes what the server says on the stream of the call
// in words that the gateway does not know. Like Log, it does not block.
type Notifier interface {
	Notified(Notification)
}

// Notification is a JSON-RPC notification, from or to an upstream.
type Notification struct {
	Method string
	Params json.RawMessage
}

// Filter says which notifications a Listen is for.
type Filter struct {
	ToolsListChanged     bool
	PromptsListChanged   bool
	ResourcesListChanged bool
	Resources            []string // URIs
	Log                  bool     // logging messages outside of any call
	Elicitations         bool     // that an elicitation by URL is complete (2025-11-25)
}

// Upstream reaches one MCP server. The suite shimtest.Upstream is the contract in
// executable form. Errors are *UpstreamError where the server could not be talked
// to as MCP wants; a JSON-RPC error of the server is a Reply.
type Upstream interface {
	// Call sends one request and blocks for its reply. A tools/call is sent exactly
	// once (design.md 0.11). When ctx ends, the call is cancelled upstream unless
	// the cause is ErrDetached. An UpstreamError that is Unsent and wraps
	// ErrUnavailable says that the upstream client needed something of the store and could not
	// have it: the call may be made again.
	Call(ctx context.Context, r Request, s Sink) (Reply, error)
	// Resume goes on with a call from a checkpoint, possibly one of another
	// replica. ErrNotResumable says that nothing can be learned of it any more.
	Resume(ctx context.Context, r Request, checkpoint json.RawMessage, s Sink) (Reply, error)
	// Resumable reports whether there is any sense in a Resume from a checkpoint that
	// was handed over: where it is false, every replica's would answer
	// ErrNotResumable. It asks nobody, and does not promise that Resume succeeds.
	Resumable(checkpoint json.RawMessage) bool
	// Notify sends a notification in a session that exists.
	Notify(ctx context.Context, s Session, n Notification) error
	// Listen hands over notifications that belong to no call, until ctx ends.
	// ready is called once with what the server agreed to.
	Listen(ctx context.Context, s Session, f Filter, ready func(Filter), on func(Notification)) error
}

// ErrNotResumable is an error of Upstream.Resume.
var ErrNotResumable = errors.New("the upstream call cannot be resumed")

// UpstreamError says why an upstream could not be talked to. Its text is safe to
// show to a client: it holds no address, header or body of the upstream.
type UpstreamError struct {
	// Kind is a low-cardinality label: one of the kinds below, or queue, lost (with its
	// replica), shutdown (of its replica).
	Kind string
	// Message is for the client; Err, which may name addresses, for the log.
	Message string
	Err     error
	// RetryAfterMs is when to come back, for Kind overloaded and queue; 0 unknown.
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

// Unwrap returns the cause.
func (e *UpstreamError) Unwrap() error { return e.Err }

// codeInternal is JSON-RPC's internal error, the code of everything that failed
// for another reason than what the server answered (design.md 0.5).
const codeInternal = -32603

// object is the error as JSON, its data untouched.
func (e *RPCError) object() json.RawMessage {
	b := append([]byte(`{"code":`), strconv.FormatInt(e.Code, 10)...)
	b = append(b, `,"message":`...)
	b = jsonrpc.AppendString(b, e.Message)
	if e.Data != nil {
		b = append(append(b, `,"data":`...), e.Data...)
	}
	return append(b, '}')
}

// callTool is the one method whose requests may become tasks.
const callTool = "tools/call"

// tool is the tool that the request calls, "" for none.
func (r Request) tool() string {
	if r.Method != callTool {
		return ""
	}
	return r.Name
}
