package upstream

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/metrics"
	"taskgate/internal/semconv"
	"taskgate/shim"
)

// w3c is fixed here, whatever the process's settings, so that the context of a client passes through
// even if telemetry is off.
var w3c propagation.TraceContext

// carryTrace gives the trace context of ctx by its W3C names, for params._meta (SEP-414) and, under the
// same names, HTTP headers.
func (w *wire) carryTrace(ctx context.Context) propagation.MapCarrier {
	b := w.spellBaggage(ctx)
	if b == "" && !trace.SpanContextFromContext(ctx).IsValid() {
		return nil
	}
	c := propagation.MapCarrier{}
	w3c.Inject(ctx, c)
	if b != "" {
		c[mcp.MetaBaggage] = b
	}
	return c
}

// spellBaggage spells the members that the configuration lets through. All others stop at this boundary
// of trust.
func (w *wire) spellBaggage(ctx context.Context) string {
	if len(w.cfg.Baggage) == 0 {
		return ""
	}
	var members []string
	b := baggage.FromContext(ctx)
	for _, key := range w.cfg.Baggage {
		if m := b.Member(key); m.Key() != "" {
			members = append(members, m.String())
		}
	}
	return strings.Join(members, ",")
}

// startSpan starts the client span of one request (protocol.md 9).
func (x *exchange) startSpan(ctx context.Context) context.Context {
	x.begun = time.Now()
	defer func() { x.trace = x.w.carryTrace(ctx) }()
	if x.unseen || x.w.dark { // no span: only the caller's context is passed on
		x.span = noop.Span{}
		if !x.w.dark {
			x.parent = trace.ContextWithSpanContext(context.Background(), trace.SpanContextFromContext(ctx))
		}
		return ctx
	}
	ctx, x.span = x.w.tracer.Start(ctx, semconv.SpanName(x.method, x.name), startClient...)
	return ctx
}

var startClient = []trace.SpanStartOption{trace.WithSpanKind(semconv.KindUpstream)}

// spanAttributes are the attributes of the ended span, made only for a sampled one.
func (x *exchange) spanAttributes() []attribute.KeyValue {
	attrs := append(make([]attribute.KeyValue, 0, 16), x.w.attrs...)
	attrs = append(attrs,
		semconv.MCPMethod.String(x.method),
		semconv.RequestID.String(x.id),
		semconv.UpstreamEra.String(x.to.era.String()))
	attrs = semconv.AppendTarget(attrs, x.method, x.name)
	if x.to.version != "" {
		attrs = append(attrs, semconv.MCPProtocolVersion.String(x.to.version))
	}
	if x.to.session != "" {
		attrs = append(attrs, semconv.MCPSessionID.String(x.to.session))
	}
	if v := x.head.Protocol; v != "" {
		attrs = append(attrs, semconv.ProtocolName.String("http"), semconv.ProtocolVersion.String(v))
	}
	return attrs
}

// endSpan records how the request ended. Arguments, results and the texts of errors are left out: they
// are the client's and the server's.
func (x *exchange) endSpan(err error) {
	if _, kind := x.outcomeOf(err); x.unseen && kind != "" && !x.w.dark { // of many that succeed one that fails is seen
		_, x.span = x.w.tracer.Start(x.parent, semconv.SpanName(x.method, x.name), append(startClient, trace.WithTimestamp(x.begun))...)
	}
	defer x.span.End()
	if !x.span.IsRecording() {
		return
	}
	x.span.SetAttributes(x.spanAttributes()...)
	rpc, kind := x.outcomeOf(err)
	if rpc != nil {
		x.span.SetAttributes(semconv.RPCStatusCode.String(kind))
	}
	if kind != "" {
		x.span.SetAttributes(semconv.ErrorType.String(kind))
		x.span.SetStatus(codes.Error, "")
	}
}

// outcomeOf is how the request ended. kind is the code of a JSON-RPC error, or the name of another
// error, or "" for success.
func (x *exchange) outcomeOf(err error) (rpc *jsonrpc.Error, kind string) {
	if err == nil {
		rpc = x.answer.Error
	}
	if se, ok := err.(*transport.StatusError); ok {
		rpc = se.Answer()
	}
	switch {
	case rpc != nil:
		return rpc, strconv.FormatInt(rpc.Code, 10)
	case err != nil:
		return nil, labelOf(err)
	case x.answer.IsToolError(x.method):
		return nil, semconv.ErrorTool
	}
	return nil, ""
}

// measureRequest measures the request as it ended, and learns the names that it shows to exist. It
// skips a stream that listens, whose duration is the listener's.
func (x *exchange) measureRequest(ctx context.Context, err error) {
	m := x.w.metrics
	if m == nil || x.listens {
		return
	}
	o := metrics.Operation{Method: x.method, Version: x.to.version, Name: x.name}
	if !mcp.IsRequest(x.method) { // a client may write what it likes
		o.Method = semconv.UnknownMethod
	}
	switch rpc, kind := x.outcomeOf(err); {
	case rpc != nil:
		o.Code = rpc.Code
	case kind != "":
		o.Err = kind
	case x.method == mcp.MethodToolsList:
		m.Listed(mcp.MethodToolsCall, listedNames(x.answer.Result, "tools"))
	case x.method == mcp.MethodPromptsList:
		m.Listed(mcp.MethodPromptsGet, listedNames(x.answer.Result, "prompts"))
	}
	m.Operation(ctx, time.Since(x.begun), o)
}

func listedNames(result []byte, of string) []string {
	var names []string
	list, _ := jsonrpc.Get(result, of)
	for entry := range jsonrpc.Elements(list) {
		name, _ := jsonrpc.GetString(entry, "name")
		names = append(names, name)
	}
	return names
}

// labelOf is an error as a word out of a small set.
func labelOf(err error) string {
	if ue, ok := errors.AsType[*shim.UpstreamError](publicError(err)); ok {
		return ue.Kind
	}
	switch {
	case errors.Is(err, shim.ErrDetached):
		return "detached"
	case errors.Is(err, context.DeadlineExceeded):
		return shim.KindTimeout
	}
	return "cancelled"
}
