package spans

import (
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
)

// encoder writes spans in the wire format of protobuf. The numbers of fields are those of
// opentelemetry/proto/trace/v1/trace.proto. Its buffers are used again.
type encoder struct {
	out, scope, span []byte
}

// encode writes a message ResourceSpans with all spans, which are of one resource. It is good
// until the next call.
func (e *encoder) encode(spans []sdktrace.ReadOnlySpan) []byte {
	e.out = e.out[:0]
	res := spans[0].Resource()
	e.span = appendAttributes(e.span[:0], 1, res.Attributes())
	e.out = appendBytes(e.out, 1, e.span)
	for len(spans) > 0 {
		scope := spans[0].InstrumentationScope()
		n := 1
		for n < len(spans) && spans[n].InstrumentationScope() == scope {
			n++
		}
		e.appendScope(scope, spans[:n])
		e.out = appendBytes(e.out, 2, e.scope)
		spans = spans[n:]
	}
	e.out = appendText(e.out, 3, res.SchemaURL())
	return e.out
}

// appendScope writes the spans of one scope into e.scope.
func (e *encoder) appendScope(scope instrumentation.Scope, spans []sdktrace.ReadOnlySpan) {
	e.span = appendText(e.span[:0], 1, scope.Name)
	e.span = appendText(e.span, 2, scope.Version)
	e.span = appendAttributes(e.span, 3, scope.Attributes.ToSlice())
	e.scope = appendBytes(e.scope[:0], 1, e.span)
	for _, s := range spans {
		e.span = appendSpan(e.span[:0], s)
		e.scope = appendBytes(e.scope, 2, e.span)
	}
	e.scope = appendText(e.scope, 3, scope.SchemaURL)
}

func appendSpan(b []byte, s sdktrace.ReadOnlySpan) []byte {
	own, parent := s.SpanContext(), s.Parent()
	tid, sid := own.TraceID(), own.SpanID()
	b = appendBytes(b, 1, tid[:])
	b = appendBytes(b, 2, sid[:])
	b = appendText(b, 3, own.TraceState().String())
	if psid := parent.SpanID(); psid.IsValid() {
		b = appendBytes(b, 4, psid[:])
	}
	b = appendText(b, 5, s.Name())
	b = appendNumber(b, 6, uint64(kindOf(s.SpanKind())))
	b = appendTime(b, 7, s.StartTime())
	b = appendTime(b, 8, s.EndTime())
	b = appendAttributes(b, 9, s.Attributes())
	b = appendNumber(b, 10, uint64(s.DroppedAttributes()))
	for _, ev := range s.Events() {
		in := appendTime(nil, 1, ev.Time)
		in = appendText(in, 2, ev.Name)
		in = appendAttributes(in, 3, ev.Attributes)
		b = appendBytes(b, 11, appendNumber(in, 4, uint64(ev.DroppedAttributeCount)))
	}
	b = appendNumber(b, 12, uint64(s.DroppedEvents()))
	for _, l := range s.Links() {
		tid, sid := l.SpanContext.TraceID(), l.SpanContext.SpanID()
		in := appendBytes(make([]byte, 0, 64), 1, tid[:])
		in = appendBytes(in, 2, sid[:])
		in = appendAttributes(in, 4, l.Attributes)
		in = appendNumber(in, 5, uint64(l.DroppedAttributeCount))
		b = appendBytes(b, 13, appendFlags(in, 6, l.SpanContext.TraceFlags(), l.SpanContext))
	}
	b = appendNumber(b, 14, uint64(s.DroppedLinks()))
	status := s.Status()
	in := appendText(make([]byte, 0, 16), 2, status.Description)
	b = appendBytes(b, 15, appendNumber(in, 3, uint64(codeOf(status.Code))))
	return appendFlags(b, 16, own.TraceFlags(), parent)
}

// appendAttributes writes attributes as messages KeyValue. Values that are neither texts, numbers
// nor booleans, of which the gateway has none, are texts.
func appendAttributes(b []byte, field protowire.Number, attributes []attribute.KeyValue) []byte {
	for _, kv := range attributes {
		var room [16]byte
		value, text := room[:0], ""
		switch kv.Value.Type() {
		case attribute.BOOL:
			value = protowire.AppendVarint(protowire.AppendTag(value, 2, protowire.VarintType), protowire.EncodeBool(kv.Value.AsBool()))
		case attribute.INT64:
			value = protowire.AppendVarint(protowire.AppendTag(value, 3, protowire.VarintType), uint64(kv.Value.AsInt64()))
		case attribute.FLOAT64:
			value = protowire.AppendFixed64(protowire.AppendTag(value, 4, protowire.Fixed64Type), math.Float64bits(kv.Value.AsFloat64()))
		case attribute.STRING:
			text = kv.Value.AsString()
			value = protowire.AppendVarint(protowire.AppendTag(value, 1, protowire.BytesType), uint64(len(text)))
		default:
			text = kv.Value.Emit()
			value = protowire.AppendVarint(protowire.AppendTag(value, 1, protowire.BytesType), uint64(len(text)))
		}
		n := len(value) + len(text)
		b = protowire.AppendTag(b, field, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(1+protowire.SizeBytes(len(kv.Key))+1+protowire.SizeBytes(n)))
		b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), string(kv.Key))
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.BytesType), uint64(n))
		b = append(append(b, value...), text...)
	}
	return b
}

func appendBytes(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func appendText(b []byte, field protowire.Number, value string) []byte {
	if value == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), value)
}

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func appendTime(b []byte, field protowire.Number, at time.Time) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(max(0, at.UnixNano())))
}

// appendFlags writes those of a span or a link, which say whether a context is of another process.
func appendFlags(b []byte, field protowire.Number, own trace.TraceFlags, of trace.SpanContext) []byte {
	flags := uint32(own) | uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK)
	if of.IsRemote() {
		flags |= uint32(tracepb.SpanFlags_SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, field, protowire.Fixed32Type), flags)
}

func kindOf(k trace.SpanKind) tracepb.Span_SpanKind {
	switch k {
	case trace.SpanKindServer:
		return tracepb.Span_SPAN_KIND_SERVER
	case trace.SpanKindClient:
		return tracepb.Span_SPAN_KIND_CLIENT
	case trace.SpanKindProducer:
		return tracepb.Span_SPAN_KIND_PRODUCER
	case trace.SpanKindConsumer:
		return tracepb.Span_SPAN_KIND_CONSUMER
	}
	return tracepb.Span_SPAN_KIND_INTERNAL
}

func codeOf(c codes.Code) tracepb.Status_StatusCode {
	switch c {
	case codes.Ok:
		return tracepb.Status_STATUS_CODE_OK
	case codes.Error:
		return tracepb.Status_STATUS_CODE_ERROR
	}
	return tracepb.Status_STATUS_CODE_UNSET
}
