// Package semconv spells the OpenTelemetry names that the gateway writes: those of the semantic
// conventions for MCP and those of its own.
//
// The Go packages of OpenTelemetry dropped the mcp names with v1.42.0, when the conventions moved
// to a repository that is not a Go module, so they are written out here. All have the status
// Development. There, arguments and results of tools are opt-in; the gateway records neither.
package semconv

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the instrumentation scope of spans and metrics.
const Scope = "taskgate"

// Attributes of the conventions for MCP, on spans. Those on metrics have a bounded set of values.
const (
	MCPMethod          = attribute.Key("mcp.method.name") // required on every span
	MCPProtocolVersion = attribute.Key("mcp.protocol.version")
	MCPSessionID       = attribute.Key("mcp.session.id") // spans only
	MCPResourceURI     = attribute.Key("mcp.resource.uri")
	GenAITool          = attribute.Key("gen_ai.tool.name")
	GenAIPrompt        = attribute.Key("gen_ai.prompt.name")
	GenAIOperation     = attribute.Key("gen_ai.operation.name") // OperationExecuteTool, on tools/call only
	RequestID          = attribute.Key("jsonrpc.request.id")    // spans only
	RPCStatusCode      = attribute.Key("rpc.response.status_code")
	ErrorType          = attribute.Key("error.type") // a JSON-RPC code, ErrorTool, or a label
	Transport          = attribute.Key("network.transport")
	ProtocolName       = attribute.Key("network.protocol.name")
	ProtocolVersion    = attribute.Key("network.protocol.version")
	ServerAddress      = attribute.Key("server.address") // client spans
	ServerPort         = attribute.Key("server.port")
	ClientAddress      = attribute.Key("client.address") // server spans
	ClientPort         = attribute.Key("client.port")
)

// Values of the attributes above.
const (
	OperationExecuteTool = "execute_tool"
	ErrorTool            = "tool_error" // ErrorType of a result with isError
	TransportTCP         = "tcp"
	TransportPipe        = "pipe"
)

// Metrics of the conventions: histograms in seconds with the bounds of DurationBounds.
const (
	ServerOperationDuration = "mcp.server.operation.duration"
	ClientOperationDuration = "mcp.client.operation.duration"
	ServerSessionDuration   = "mcp.server.session.duration"
	ClientSessionDuration   = "mcp.client.session.duration"
)

// DurationBounds are the bucket bounds of the duration metrics, in seconds.
var DurationBounds = []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300}

// LimitRefusals is a metric of the gateway's own: how many requests, streams and connections a
// limit of the gateway has kept out.
const LimitRefusals = "taskgate.limit.refusals"

// Attributes of the gateway's own.
const (
	Limit       = attribute.Key("taskgate.limit")     // the key of the configuration that sets the limit
	Upstream    = attribute.Key("taskgate.upstream")  // the configured name
	Principal   = attribute.Key("taskgate.principal") // of a metric only: one of the first 200, or OtherName
	UpstreamEra = attribute.Key("taskgate.upstream.era")
	TaskID      = attribute.Key("taskgate.task.id") // spans only
	TaskStatus  = attribute.Key("taskgate.task.status")
	TaskAttempt = attribute.Key("taskgate.task.attempt") // 1 for the first
	Replica     = attribute.Key("taskgate.replica")
	ConfigHash  = attribute.Key("taskgate.config.hash")
	TaskFrom    = attribute.Key("taskgate.task.from")        // spans only: the replica that ran the task before
	Resumed     = attribute.Key("taskgate.upstream.resumed") // the call was resumed from a checkpoint
)

// Values that replace unbounded sets of values.
const (
	UnknownMethod = "unknown" // MCPMethod of a request outside of the protocol
	OtherName     = "_other"  // GenAITool, GenAIPrompt on a metric
)

// maxName bounds the names of tools, prompts and resources on spans, in bytes: they come from
// clients.
const maxName = 256

// Cut returns a name as spans have it.
func Cut(name string) string {
	if len(name) <= maxName {
		return name
	}
	return strings.ToValidUTF8(name[:maxName], "") + "…"
}

// SpanName returns the name of a span: the method and, if there is one, the tool or prompt. The URI
// of a resource is left out, because it has an unbounded set of values.
func SpanName(method, name string) string {
	switch method {
	case "tools/call", "prompts/get":
		if name != "" {
			return method + " " + Cut(name)
		}
	}
	return method
}

// AppendTarget adds the attributes of a request's target: the tool with its operation, the prompt,
// or the resource.
func AppendTarget(a []attribute.KeyValue, method, name string) []attribute.KeyValue {
	name = Cut(name)
	switch {
	case name == "":
	case method == "tools/call":
		a = append(a, GenAITool.String(name), GenAIOperation.String(OperationExecuteTool))
	case method == "prompts/get":
		a = append(a, GenAIPrompt.String(name))
	case method == "resources/read":
		a = append(a, MCPResourceURI.String(name))
	}
	return a
}

// KindUpstream and KindClient are the kinds of the spans towards an upstream and towards a client.
const (
	KindUpstream = trace.SpanKindClient
	KindClient   = trace.SpanKindServer
)

// Attributes of the gateway's own, each with the small set of values below.
const (
	TaskOutcome     = attribute.Key("taskgate.task.outcome")
	AttemptKind     = attribute.Key("taskgate.task.attempt.kind") // spans only
	Recovery        = attribute.Key("taskgate.recovery")
	JobState        = attribute.Key("taskgate.job.state") // metrics only: how a job stands, or unread
	Repeat          = attribute.Key("taskgate.repeat")
	CallAnswer      = attribute.Key("taskgate.call.answer")
	QuestionOutcome = attribute.Key("taskgate.question.outcome")
	StoreOperation  = attribute.Key("taskgate.store.operation") // of redisstore, such as "create"
)

// Values of TaskOutcome: how a task ended, or an attempt at it.
const (
	OutcomeCompleted = "completed"
	OutcomeToolError = ErrorTool // completed, and the tool says that it failed
	OutcomeFailed    = "failed"
	OutcomeCancelled = "cancelled"
	OutcomeExpired   = "expired" // the call ran into its time limit
	OutcomeUnknown   = "unknown" // failed, and the server may have done the work
	OutcomeLeft      = "left"    // of an attempt only: another replica has the task, or will
)

// Values of AttemptKind.
const (
	AttemptRun    = "run"    // the first
	AttemptSend   = "send"   // the call was unsent
	AttemptResume = "resume" // the call goes on at the server
	AttemptRetry  = "retry"  // the call is sent a second time
	AttemptNone   = "none"   // the fate of the call is unknown
)

// Values of Repeat: what becomes of a call whose client gave up.
const (
	RepeatKept     = "kept"      // it goes on for a repeat
	RepeatPickedUp = "picked_up" // a repeat waits for it, or has its answer
	RepeatRanOut   = "ran_out"   // nobody came back in time
	RepeatYielded  = "yielded"   // another call needed its place
	RepeatRefused  = "refused"   // its owner has as many tasks as there may be
)

// Values of Recovery: what a replica does with a call that it took over. If it fails to resume a
// call, a second value follows.
const (
	RecoverySent    = "sent"    // it was certainly unsent
	RecoveryResumed = "resumed" // the server is asked to go on
	RecoveryRetried = "retried" // the tool runs again (recover: retry)
	RecoveryLost    = "lost"    // its fate is unknown
)

// Values of CallAnswer: the answer that a client got for its tools/call.
const (
	AnswerReply         = "reply"
	AnswerTask          = "task"
	AnswerInputRequired = "input_required" // questions, without a task
	AnswerCancelled     = "cancelled"      // none: the client has left, or has cancelled the call
	AnswerError         = "error"          // the gateway's own
)

// Values of QuestionOutcome: how a question of a server ended.
const (
	QuestionAnswered  = "answered"
	QuestionRefused   = "error"     // the client answered with an error
	QuestionExpired   = "expired"   // there was no answer in time
	QuestionWithdrawn = "withdrawn" // the call ended first, or the server stopped waiting
	QuestionLost      = "lost"      // answered, and the replica that had the answer was lost
)
