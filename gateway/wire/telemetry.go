package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/metrics"
	"taskgate/internal/semconv"
	"taskgate/shim"
)

// Telemetry writes a SERVER span and a duration for each client request (protocol.md section 9). It
// uses the OpenTelemetry API only; cmd decides where the data goes.
type Telemetry struct {
	tracer  trace.Tracer
	metrics *metrics.Metrics // nil: none
	baggage []string         // keys that are passed on
	// untraced says that spans have no exporter, so they are not made. The context of a client
	// still passes through.
	untraced  bool
	recurring recurring
}

// NewTelemetry takes the targets of spans and metrics; m may be nil. Of a client's baggage the
// named keys are passed on. What is refused is logged, and each request with access.
func NewTelemetry(tp trace.TracerProvider, m *metrics.Metrics, baggage []string, log *slog.Logger, access bool) *Telemetry {
	_, untraced := tp.(tracenoop.TracerProvider)
	return &Telemetry{
		tracer: tp.Tracer(semconv.Scope), metrics: m, baggage: baggage, untraced: untraced,
		recurring: recurring{log: log, access: access},
	}
}

// Operation is one client request under observation. A nil operation observes nothing.
type Operation struct {
	tel   *Telemetry
	ctx   context.Context
	span  trace.Span
	begun time.Time
	said  metrics.Operation // the measured values
	err   string            // error.type
	code  int64             // the JSON-RPC code, 0 for none
	late  func() trace.Span // makes the span of a failed poll; nil for others
}

// Request is the part of a message that telemetry needs.
type Request struct {
	Msg       jsonrpc.Message
	Meta      json.RawMessage // of Msg, if it is known already
	Name      string          // of the tool or prompt, or the resource's URI
	Version   string
	Upstream  string
	SessionID string // legacy
	// Principal is who sends it, and ClientInfo what its client says of itself.
	Principal  shim.Principal
	ClientInfo json.RawMessage
}

// Start begins the operation. Its parent is the context in params._meta (SEP-414). The transport's
// own context, from the HTTP header or a span around the handler, is linked then, and is the parent
// otherwise.
func (t *Telemetry) Start(ctx context.Context, r *http.Request, q Request) (context.Context, *Operation) {
	meta := metaCarrier(q.Meta)
	if meta == nil {
		meta = metaOf(q.Msg.Params)
	}
	parent, transport := remoteContexts(ctx, r, meta)
	ctx = t.withBaggage(ctx, r, meta)
	switch {
	case parent.IsValid():
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	case transport.IsValid() && !trace.SpanContextFromContext(ctx).IsValid():
		ctx = trace.ContextWithRemoteSpanContext(ctx, transport)
	}
	if t.untraced && t.metrics == nil {
		return ctx, nil
	}
	op := &Operation{tel: t, ctx: ctx, span: tracenoop.Span{}}
	if !mcp.IsRequest(q.Msg.Method) { // a client may send any method
		q.Msg.Method, q.Name = semconv.UnknownMethod, ""
	}
	if mcp.EraOf(q.Version) == mcp.NoEra {
		q.Version = ""
	}
	t.metrics.Sent(ctx, q.Upstream, callerOf(q.Principal, r.RemoteAddr, q.ClientInfo), q.Msg.Method)
	op.begun = time.Now()
	op.said = metrics.Operation{Method: q.Msg.Method, Version: q.Version, Upstream: q.Upstream, Name: q.Name}
	if t.untraced {
		return ctx, op
	}
	opts := startServer
	if parent.IsValid() && transport.IsValid() {
		opts = append(slices.Clip(opts), trace.WithLinks(trace.Link{SpanContext: transport}))
	}
	if q.Msg.Method == mcp.MethodTasksGet { // there are many: only failed ones have a span
		op.late = t.later(ctx, r, q, append(slices.Clip(opts), trace.WithTimestamp(op.begun)))
		return ctx, op
	}
	op.ctx, op.span = t.startSpan(ctx, r, q, opts)
	return op.ctx, op
}

// callerOf is who sends a request from an address with a port, with what the client says of itself.
func callerOf(p shim.Principal, address string, clientInfo json.RawMessage) metrics.Caller {
	if p.Subject != "" && !p.Stranger {
		return metrics.Caller{Principal: p.Subject}
	}
	name, _ := jsonrpc.GetString(clientInfo, "name")
	host, _, _ := net.SplitHostPort(address)
	return metrics.Caller{Address: host, Client: name}
}

// methodRefused counts, in place of a method, requests that are refused before their method is known.
const methodRefused = "refused"

// CountRefused counts a request that is refused before its method is known, or for who sends it, from an address with a
// port.
func (t *Telemetry) CountRefused(ctx context.Context, upstream string, p shim.Principal, address string) {
	t.metrics.Sent(ctx, upstream, callerOf(p, address, nil), methodRefused)
}

// startServer are the options of each span of a request.
var startServer = []trace.SpanStartOption{trace.WithSpanKind(semconv.KindClient)}

// startSpan starts the span of a request. Only a sampled span gets its attributes: most cost more
// than the span.
func (t *Telemetry) startSpan(ctx context.Context, r *http.Request, q Request, opts []trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := t.tracer.Start(ctx, semconv.SpanName(q.Msg.Method, q.Name), opts...)
	if span.IsRecording() {
		span.SetAttributes(attributes(r, q)...)
	}
	return ctx, span
}

// later returns a function that starts the span.
func (t *Telemetry) later(ctx context.Context, r *http.Request, q Request, opts []trace.SpanStartOption) func() trace.Span {
	return func() trace.Span {
		_, span := t.startSpan(ctx, r, q, opts)
		return span
	}
}

// Refuse answers a message that is kept out, or refused for its content or its headers. A request is
// observed all the same.
func (t *Telemetry) Refuse(w http.ResponseWriter, r *http.Request, q Request, err error) {
	t.Refused(r.Context(), err)
	f := *FailureOf(q.Version, err)
	if q.Msg.Kind == jsonrpc.Request {
		f.ID = q.Msg.ID
		_, op := t.Start(r.Context(), r, q)
		op.Failed(f.Code)
		defer op.End()
	} else {
		t.CountRefused(r.Context(), q.Upstream, q.Principal, r.RemoteAddr)
	}
	WriteFailure(w, &f)
}

// Refused counts, and logs, a request that a limit of the gateway has kept out, by the key of the limit. It is
// called once for each error that goes to a client, and ignores all other errors.
func (t *Telemetry) Refused(ctx context.Context, err error) {
	if busy, ok := errors.AsType[*shim.BusyError](err); ok && busy.Key != "" {
		t.metrics.Refused(ctx, busy.Key)
		text := "a limit refuses clients"
		if busy.Paused != "" {
			text = "calls are refused that an operator has paused"
		}
		t.recurring.noteLimit(ctx, text, busy.Key)
	}
}

// Unreached counts a call of a tool at a server that could not be reached, or that is no server, before there was a call.
func (t *Telemetry) Unreached(ctx context.Context, upstream, tool string, since time.Time) {
	t.metrics.Tasks(upstream).Called(ctx, tool, semconv.AnswerError, time.Since(since))
}

// Near logs that a limit is nearly reached.
func (t *Telemetry) Near(ctx context.Context, key string) {
	t.recurring.noteLimit(ctx, "a limit is nearly reached", key)
}

// SessionEnded measures a session that has ended.
func (t *Telemetry) SessionEnded(ctx context.Context, upstream, version string, since time.Time) {
	t.metrics.ServerSession(ctx, max(0, time.Since(since)), upstream, version)
}

// attributes are those of the span of a request.
func attributes(r *http.Request, q Request) []attribute.KeyValue {
	a := append(make([]attribute.KeyValue, 0, 12),
		semconv.MCPMethod.String(q.Msg.Method),
		semconv.MCPProtocolVersion.String(q.Version),
		semconv.Transport.String(semconv.TransportTCP),
		semconv.ProtocolName.String("http"),
		semconv.Upstream.String(q.Upstream))
	a = semconv.AppendTarget(a, q.Msg.Method, q.Name)
	if !q.Msg.ID.IsZero() {
		a = append(a, semconv.RequestID.String(q.Msg.ID.String()))
	}
	if q.SessionID != "" {
		a = append(a, semconv.MCPSessionID.String(q.SessionID))
	}
	if host, port, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		a = append(a, semconv.ClientAddress.String(host))
		if n, err := strconv.Atoi(port); err == nil {
			a = append(a, semconv.ClientPort.Int(n))
		}
	}
	if !IsStdio(r.Context()) {
		a = append(a, semconv.ProtocolVersion.String(protocolVersion(r)))
	}
	return a
}

// protocolVersion is the version of HTTP as the conventions spell it: 1.1, and 2.
func protocolVersion(r *http.Request) string {
	return strings.TrimSuffix(strings.TrimPrefix(r.Proto, "HTTP/"), ".0")
}

// Answer begins the span of a client's answer to a question of a task or of a call. Only requests
// are measured. The shim links the span to the trace of the task.
func (t *Telemetry) Answer(ctx context.Context, upstream, task string) (context.Context, trace.Span) {
	if t.untraced {
		return ctx, tracenoop.Span{}
	}
	return t.tracer.Start(ctx, "answer", trace.WithSpanKind(semconv.KindClient),
		trace.WithAttributes(semconv.Upstream.String(upstream), semconv.TaskID.String(task)))
}

// Failed records a JSON-RPC error as the outcome.
func (o *Operation) Failed(code int64) {
	if o != nil {
		o.code, o.err = code, strconv.FormatInt(code, 10)
	}
}

// ToolError records that the tool ran and reports failure (isError).
func (o *Operation) ToolError() {
	if o != nil {
		o.err = semconv.ErrorTool
	}
}

// Cancelled records that the client went away before the answer.
func (o *Operation) Cancelled() {
	if o != nil {
		o.err = "cancelled"
	}
}

// Task records which task the request is about, and links the span to the trace in which the task
// was made, so that a poll leads to the run.
func (o *Operation) Task(id string, trc map[string]string) {
	if o == nil || o.tel.untraced {
		return
	}
	o.span.SetAttributes(semconv.TaskID.String(id))
	o.Link(trc)
}

// Link links the span to the trace of one of the tasks that the request is about.
func (o *Operation) Link(trc map[string]string) {
	if o == nil || !o.span.IsRecording() {
		return
	}
	if sc := spanContextOf(propagation.MapCarrier(trc)); sc.IsValid() && sc.TraceID() != o.span.SpanContext().TraceID() {
		o.span.AddLink(trace.Link{SpanContext: sc})
	}
}

// End finishes span and measurement.
func (o *Operation) End() {
	if o == nil {
		return
	}
	if o.tel.metrics != nil {
		o.said.Err, o.said.Code = o.err, o.code
		o.tel.metrics.ServerOperation(o.ctx, time.Since(o.begun), o.said)
	}
	if o.err != "" && o.late != nil {
		o.span = o.late()
	}
	if o.err != "" {
		o.span.SetAttributes(semconv.ErrorType.String(o.err))
		o.span.SetStatus(codes.Error, "")
	}
	if o.code != 0 {
		o.span.SetAttributes(semconv.RPCStatusCode.String(strconv.FormatInt(o.code, 10)))
	}
	o.span.End()
}

// headerTraceparent is the header's name as net/http spells it. Looking for it first spares most
// requests a propagator that spells the name each time.
const headerTraceparent = "Traceparent"

// remoteContexts reads the two places of a trace. A span that wraps the handler already has the
// header's context as its parent and stands for it.
func remoteContexts(ctx context.Context, r *http.Request, meta metaCarrier) (parent, transport trace.SpanContext) {
	if of := meta.Get(mcp.MetaTraceparent); of != "" {
		parent = spanContextOf(propagation.MapCarrier{mcp.MetaTraceparent: of, mcp.MetaTracestate: meta.Get(mcp.MetaTracestate)})
	}
	transport = trace.SpanContextFromContext(ctx)
	if !transport.IsValid() && r.Header[headerTraceparent] != nil {
		transport = spanContextOf(propagation.HeaderCarrier(r.Header))
	}
	return parent, transport
}

func spanContextOf(c propagation.TextMapCarrier) trace.SpanContext {
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), c))
}

// metaCarrier is the text of params._meta, whose W3C keys have no prefix by intent (SEP-414).
type metaCarrier json.RawMessage

// metaOf finds params._meta.
func metaOf(params []byte) metaCarrier {
	meta, _ := jsonrpc.Get(params, "_meta")
	return metaCarrier(meta)
}

// Get returns the string of that name, "" for none.
func (m metaCarrier) Get(key string) string {
	if !bytes.Contains(m, []byte(key)) && bytes.IndexByte(m, '\\') < 0 { // most texts lack it, and a full search costs more
		return ""
	}
	v, _ := jsonrpc.GetString(m, key)
	return v
}

// withBaggage keeps the baggage that the operator lets through: anybody may have sent it.
func (t *Telemetry) withBaggage(ctx context.Context, r *http.Request, meta metaCarrier) context.Context {
	if baggage.FromContext(ctx).Len() > 0 {
		ctx = baggage.ContextWithoutBaggage(ctx)
	}
	if len(t.baggage) == 0 {
		return ctx
	}
	text := meta.Get(mcp.MetaBaggage)
	if text == "" {
		text = r.Header.Get(mcp.MetaBaggage)
	}
	all, err := baggage.Parse(text)
	if err != nil {
		return ctx
	}
	kept := slices.DeleteFunc(all.Members(), func(m baggage.Member) bool { return !slices.Contains(t.baggage, m.Key()) })
	b, err := baggage.New(kept...)
	if err != nil {
		return ctx
	}
	return baggage.ContextWithBaggage(ctx, b)
}
