package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/budget"
	"taskgate/internal/metrics"
)

// EraChoice says which generation of the protocol to speak to the server.
type EraChoice string

// The eras. The empty Era is EraAuto.
const (
	EraAuto   EraChoice = "auto"   // the client's era, if the server speaks it (protocol.md 2.10)
	EraLegacy EraChoice = "legacy" // initialize and sessions
	EraModern EraChoice = "modern" // metadata in each request
)

// Way says how the messages travel to a server with a URL.
type Way string

// The ways. The empty Way is WayAuto.
const (
	WayAuto Way = "auto" // whichever the server has (protocol.md 2.10)
	WayHTTP Way = "http" // Streamable HTTP
	WaySSE  Way = "sse"  // HTTP+SSE of 2024-11-05, which is legacy
)

// Info names a program, as the Implementation object of MCP does.
type Info struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Config describes one server and how to reach it. URL or Transport is required, the rest is optional.
type Config struct {
	// Name is the configured name of the upstream, for logs and spans.
	Name string
	// URL is the server's MCP endpoint, http or https.
	URL string
	// TLS says how to connect to an https URL; nil trusts the authorities of the system.
	TLS *tls.Config
	// Dial replaces the network towards the server, for tests.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Transport is used in place of HTTP; URL is empty then. HTTP.Close closes it.
	Transport transport.Transport
	// Headers go with every request. gateway/config refuses Idempotency-Key, since net/http repeats a POST
	// that has it when a connection breaks, and the headers that the transport writes.
	Headers http.Header
	// MaxSeen is the number of kinds of clients for which the client remembers what the server says of
	// itself. Clients of one era that declare the same and have the same token are one kind. 256 if 0.
	MaxSeen int
	// Way says which transport the server at URL has; WayAuto if empty.
	Way Way
	// SSEEndpoint replaces the origin and the path of the address that a server of HTTP+SSE names for messages; "" for
	// that of the server.
	SSEEndpoint string
	// Era says which era to speak; EraAuto if empty.
	Era EraChoice
	// Shared lets all calls with Session.Key "" share one upstream session per set of capabilities. Otherwise
	// each has one of its own, deleted afterwards (design.md 0.16).
	Shared bool

	// Tasks says for which calls tasks of the server's own are used; TasksAuto if empty.
	Tasks TaskUse

	// Sessions shares the upstream sessions of legacy client sessions between
	// replicas (shim.Session.Shared); nil keeps them in this process.
	Sessions Sessions
	// TasksUnnoted reports whether there may be tasks that use sessions, and nobody notes it (Sessions.Use): those of a
	// lost replica, which are yet to be adopted, of one of an earlier version, or of an earlier client here. As long as
	// that is so, the session of a client that has ended its own is kept at the server for a while. nil means that there
	// may be some.
	TasksUnnoted func(ctx context.Context) (bool, error)

	// StartTimeout bounds each request that finds out the era or opens a session, with the start of a
	// process; 60s if 0.
	StartTimeout time.Duration
	// Silence is how long a server with a Transport may take to answer server/discover. After that the method
	// counts as unknown to it. 5s if 0.
	Silence time.Duration
	// IdleTimeout ends a call whose server has been silent for this long, before it takes the request or in
	// its response. Even a comment in the stream counts as a sign of life, and the time in which a question
	// waits for the client is left out. 0 means never.
	IdleTimeout time.Duration
	// SessionIdle is how long an idle upstream session is kept; 1h if 0.
	SessionIdle time.Duration

	// MaxResult bounds a JSON body, and one event of a stream, in bytes; 32 MiB if 0.
	MaxResult int64
	// Budget bounds the bytes of answers that are held; nil means unbounded. The bytes are added to the hold
	// of the call's context, if it has one.
	Budget *budget.Bytes

	// Replica tells this process from others that have the same sessions.
	Replica string
	// FirstID is where the ids of requests, which are their progress tokens too, begin in sessions that this client
	// opens: a random number below 2^30. It distinguishes successive clients of one replica.
	FirstID int64
	// GatewayInfo is the clientInfo if a Session lacks it.
	GatewayInfo Info

	// Logger takes everything that is not returned as an error; nil discards it.
	Logger *slog.Logger
	// TracerProvider makes the client spans. If it is nil, only the caller's trace context passes through.
	TracerProvider trace.TracerProvider
	// Metrics measures requests and sessions; nil turns that off.
	Metrics *metrics.Metrics
	// Baggage lists the baggage keys that may reach the server (protocol.md 9).
	Baggage []string
}

// Defaults of Config.
const (
	defaultStart = time.Minute
	defaultIdle  = time.Hour // as long as a client's session
	defaultMax   = 32 << 20
)

// withDefaults fills in zero fields.
func (c Config) withDefaults() Config {
	c.Era = cmp.Or(c.Era, EraAuto)
	c.Way = cmp.Or(c.Way, WayAuto)
	if c.Way == WaySSE && c.Era == EraAuto {
		c.Era = EraLegacy
	}
	c.Tasks = cmp.Or(c.Tasks, TasksAuto)
	c.StartTimeout = cmp.Or(c.StartTimeout, defaultStart)
	c.Silence = cmp.Or(c.Silence, 5*time.Second)
	c.SessionIdle = cmp.Or(c.SessionIdle, defaultIdle)
	c.MaxResult = cmp.Or(c.MaxResult, defaultMax)
	c.MaxSeen = cmp.Or(c.MaxSeen, maxSeen)
	c.Replica = cmp.Or(c.Replica, "tg")
	c.GatewayInfo.Name = cmp.Or(c.GatewayInfo.Name, "taskgate")
	c.GatewayInfo.Version = cmp.Or(c.GatewayInfo.Version, "dev")
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.TracerProvider == nil {
		c.TracerProvider = noop.NewTracerProvider()
	}
	return c
}

// clientInfo is the Implementation object that the server gets.
func (c Config) clientInfo(given json.RawMessage) json.RawMessage {
	if len(given) > 0 {
		return given
	}
	b, _ := json.Marshal(c.GatewayInfo) // two strings: always succeeds
	return b
}

// TaskUse says which calls use tasks of the server's own.
type TaskUse string

// The uses. The empty TaskUse is TasksAuto.
const (
	// TasksAuto uses them for tools that require one (L4), and for each call of which a modern server makes
	// one.
	TasksAuto TaskUse = "auto"
	// TasksAlways uses them for every tool that allows it: such a call outlives the gateway's connection, and
	// the gateway. For a modern server it is TasksAuto.
	TasksAlways TaskUse = "always"
	// TasksNever calls every tool plainly, and does not tell a modern server that it may make a task.
	TasksNever TaskUse = "never"
)

// Sessions keeps what replicas share of upstream sessions, so that a client session has one upstream session
// whichever replica it uses (design.md 0.16). States are opaque to it. It uses standard types only, so that a
// store can implement it by itself.
type Sessions interface {
	// Load returns the state under a key and its revision, which is 0 if the state is missing. It counts as a
	// use of the session.
	Load(ctx context.Context, key string) (state []byte, rev int64, err error)

	// Swap stores a state if the revision still is rev, and returns the new revision, which is unique; 0 if
	// the revision has moved on. With rev 0 the state must be missing.
	Swap(ctx context.Context, key string, rev int64, state []byte) (int64, error)

	// Use notes that a client (by, any name) uses a session, or uses it no more. It reports whether the client of the
	// session has ended it (End).
	Use(ctx context.Context, key, by string, uses bool) (over bool, err error)

	// End removes the state of a session that no replica has used for so long, and returns it; nil if the session is in
	// use or missing. With over its client has ended it: then it is in use, too, where another one than by has noted so.
	// A note counts for a time above a minute.
	End(ctx context.Context, key, by string, over bool, idle time.Duration) (state []byte, err error)

	// Sweep removes the states of sessions that no replica has used for so long, or that their clients have ended and
	// no replica uses, and returns them, also with an error.
	Sweep(ctx context.Context, idle time.Duration) (states [][]byte, err error)

	// TakeNumber returns a number, from 1 on, that no other call gets.
	TakeNumber(ctx context.Context) (int64, error)

	// Tell passes a one-line message about a session to all replicas that Hear, this one included. It is not
	// stored: a replica that cannot hear it now misses it.
	Tell(ctx context.Context, key string, message []byte) error

	// Hear calls hear for each such message until ctx ends; the messages of one session come in order. hear
	// must not block.
	Hear(ctx context.Context, hear func(key string, message []byte))
}

// maxSeen is the default of Config.MaxSeen. The bound is needed because clients choose their capabilities.
const maxSeen = 256
