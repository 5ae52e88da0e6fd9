package metrics

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"taskgate/internal/semconv"
)

// Operation is what the metrics of the conventions say of a request.
type Operation struct {
	Method   string // of the protocol, or semconv.UnknownMethod
	Version  string // of the protocol; "" for an unknown one
	Upstream string // the configured name
	Name     string // of the tool or prompt, as it was sent; "" for none
	Err      string // error.type without Code: a label of a small set; "" for none
	Code     int64  // the JSON-RPC code of an error, 0 for none
}

// bound keeps a name only if it may have a series of its own.
func (o *Operation) bound(n *Names) {
	switch o.Method {
	case methodTool, methodPrompt:
		o.Name = n.Bound(o.Upstream, o.Method, o.Name)
	default:
		o.Name = "" // the name of a resource is a URI
	}
}

// The methods whose requests name a tool or a prompt.
const (
	methodTool   = "tools/call"
	methodPrompt = "prompts/get"
)

// attributes are those of both sides.
func (o Operation) attributes() []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.MCPMethod.String(o.Method), semconv.Upstream.String(o.Upstream)}
	attrs = semconv.AppendTarget(attrs, o.Method, o.Name)
	if o.Version != "" {
		attrs = append(attrs, semconv.MCPProtocolVersion.String(o.Version))
	}
	if o.Code != 0 {
		code := Code(o.Code)
		attrs = append(attrs, semconv.ErrorType.String(code), semconv.RPCStatusCode.String(code))
	} else if o.Err != "" {
		attrs = append(attrs, semconv.ErrorType.String(o.Err))
	}
	return attrs
}

// served are the attributes of an operation or a session on the side of the server.
func served[K interface{ attributes() []attribute.KeyValue }](k K) []attribute.KeyValue {
	return append(k.attributes(), semconv.Transport.String(semconv.TransportTCP), semconv.ProtocolName.String(transportProtocol))
}

// Code returns a JSON-RPC code as a metric has it. A server may answer with any number: a code
// outside of JSON-RPC's own, and of the range for servers, which is MCP's too, becomes "_OTHER".
func Code(code int64) string {
	switch {
	case code == -32700, code >= -32603 && code <= -32600, code >= -32099 && code <= -32000:
		return strconv.FormatInt(code, 10)
	}
	return errorOther
}

// ServerOperation measures a request of a client.
func (m *Metrics) ServerOperation(ctx context.Context, d time.Duration, o Operation) {
	if m == nil {
		return
	}
	o.bound(&m.Names)
	m.serverOperation.Record(ctx, d.Seconds(), m.operations.of(o, served).record...)
}

// request is what the metric of HTTP requests says of one.
type request struct {
	method string
	status int
}

func (r request) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("http.request.method", r.method), attribute.Int("http.response.status_code", r.status),
	}
}

// HTTP measures a request to the public listener, until its response has ended. status is 0 if none
// was written.
func (m *Metrics) HTTP(ctx context.Context, d time.Duration, method string, status int) {
	if m == nil {
		return
	}
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE":
	default:
		method = errorOther
	}
	m.http.Record(ctx, d.Seconds(), m.requests.of(request{method, cmp.Or(status, 200)}, request.attributes).record...)
}

// session is what the metrics of the conventions say of a session.
type session struct{ version, upstream, err string }

func (s session) attributes() []attribute.KeyValue {
	attrs := []attribute.KeyValue{semconv.MCPProtocolVersion.String(s.version), semconv.Upstream.String(s.upstream)}
	if s.err != "" {
		attrs = append(attrs, semconv.ErrorType.String(s.err))
	}
	return attrs
}

// ServerSession measures a session that has ended, on the replica that made it.
func (m *Metrics) ServerSession(ctx context.Context, d time.Duration, upstream, version string) {
	if m == nil {
		return
	}
	m.serverSession.Record(ctx, d.Seconds(), m.sessions.of(session{version, upstream, ""}, served).record...)
}

// Client measures the requests to one upstream.
type Client struct {
	m          *Metrics
	upstream   string
	fixed      []attribute.KeyValue
	operations sets[Operation]
	sessions   sets[session]
	polls      sets[string]
}

// Client returns the Client of an upstream. fixed are the attributes that all its requests have,
// such as the transport and the address of the server.
func (m *Metrics) Client(upstream string, fixed []attribute.KeyValue) *Client {
	if m == nil {
		return nil
	}
	return &Client{m: m, upstream: upstream, fixed: fixed}
}

// Operation measures a request. It sets the Upstream of o.
func (c *Client) Operation(ctx context.Context, d time.Duration, o Operation) {
	if c == nil {
		return
	}
	o.Upstream = c.upstream
	if o.Err == "" && o.Code == 0 && (o.Method == methodTool || o.Method == methodPrompt) {
		c.m.Names.Learn(c.upstream, o.Method, o.Name)
	}
	o.bound(&c.m.Names)
	set := c.operations.of(o, func(o Operation) []attribute.KeyValue { return append(o.attributes(), c.fixed...) })
	c.m.clientOperation.Record(ctx, d.Seconds(), set.record...)
}

// Listed takes the names of tools (method tools/call) or prompts (prompts/get) that the upstream
// has listed.
func (c *Client) Listed(method string, names []string) {
	if c != nil {
		c.m.Names.Learn(c.upstream, method, names...)
	}
}

// Session measures a session with the upstream that has ended. err is a label; "" if the gateway
// ended it.
func (c *Client) Session(ctx context.Context, d time.Duration, version, err string) {
	if c == nil {
		return
	}
	set := c.sessions.of(session{version, c.upstream, err}, func(s session) []attribute.KeyValue { return append(s.attributes(), c.fixed...) })
	c.m.clientSession.Record(ctx, d.Seconds(), set.record...)
}

// Polled counts a question to the upstream about a job; state is a value of semconv.JobState.
func (c *Client) Polled(ctx context.Context, state string) {
	if c == nil {
		return
	}
	set := c.polls.of(state, func(state string) []attribute.KeyValue {
		return []attribute.KeyValue{semconv.Upstream.String(c.upstream), semconv.JobState.String(state)}
	})
	c.m.polls.Add(ctx, 1, set.add...)
}
