// Package config is taskgate's configuration: its keys, their defaults, and
// what makes a file right or wrong.
//
// The doc comments of the struct fields below are the manual. The schema that
// editors use (config.schema.json) is generated from them, and a test keeps
// config.example.yaml in step with them.
//
// # The file
//
// A file is one YAML document whose keys are those of [Config]. Unknown and
// repeated keys are mistakes, and [Load] reports every mistake of a file at
// once with its position, so that one round of editing is enough.
//
// # Variables
//
// ${NAME} and ${NAME:-default} are replaced in values, never in keys, and only
// after the YAML is parsed: whatever a variable holds, it cannot change the
// structure of the file. Without a default an unset variable is a mistake; the
// default also stands in for a variable that is set but empty. $$ is a single
// dollar sign, and a dollar sign before anything else stands for itself. In
// flow style ({a: b}) a value with a variable must be quoted.
//
// # Values
//
// Durations are written as in Go (300ms, 5s, 1h30m), sizes as whole bytes or
// with KiB, MiB or GiB. Secrets may be read from files by the *_file form of
// their key; such paths are relative to the configuration file.
package config

import "time"

//go:generate go run taskgate/internal/configschema

// Config is one configuration. Make one with [Load], [Parse], [FromFlags] or
// [Default], which fill in every default; its fields are plain values that
// nothing changes afterwards, so it may be read from any goroutine.
type Config struct {
	// Listen is the TCP address to serve on, as host:port. An empty host means
	// every interface, port 0 any free port.
	Listen string `yaml:"listen"`

	// Admin is the TCP address, as host:port, on which an operator's tools ask
	// after this process: GET /healthz (it serves) and GET /readyz (it should get
	// requests: it is not stopping, and reaches the store and an upstream). It
	// takes no key, so it belongs on an address that only they reach. Without it
	// there is no such listener.
	Admin string `yaml:"admin"`

	// Store is where tasks and sessions are kept: "embedded" (in this process,
	// lost when it ends) or the URL of a Redis:
	// redis://[user:pass@]host:6379/0, redis+cluster://host:6379,host:6379 or
	// redis+sentinel://host:26379,host:26379/mymaster/0. With rediss in place
	// of redis the connection uses TLS.
	Store string `yaml:"store"`

	// StoreFile is a file that holds the value of store, for URLs with a
	// password. It is used instead of store; giving both is a mistake.
	StoreFile string `yaml:"store_file"`

	// KeyPrefix begins every key and channel in the store. Replicas with the
	// same store and prefix form one deployment.
	KeyPrefix string `yaml:"key_prefix" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$" says:"letters, digits, '.', '_' and '-', at most 32"`

	// Heartbeat is how long a replica may be silent before it counts as lost
	// and its tasks are taken over. It beats every third of this. All replicas
	// of a deployment should agree on it.
	Heartbeat time.Duration `yaml:"heartbeat" min:"100ms"`

	// StoreTimeout is how long a client waits for one answer of the store
	// before it is told that the store is unavailable, or its call goes on
	// without becoming a task.
	StoreTimeout time.Duration `yaml:"store_timeout" min:"1ms"`

	// WaitReplicas is how many Redis replicas must confirm the creation and
	// the end of a task before either is reported, and that a call is sent before
	// it is, where it would be sent again if its gateway died. With 0 a failover
	// of Redis may lose the last moments before it. The embedded store has no replicas.
	WaitReplicas int `yaml:"wait_replicas" min:"0"`

	// Settle is how long a replica keeps the end of a task in memory after it
	// was stored, to write it again if a failover of Redis has forgotten it.
	// 0 keeps nothing.
	Settle time.Duration `yaml:"settle" min:"0s"`

	// DrainTimeout is how long a stopping process waits for open requests
	// before it closes them. Running tasks are handed to other replicas.
	DrainTimeout time.Duration `yaml:"drain_timeout" min:"0s"`

	// Log says what is logged, and how.
	Log Log `yaml:"log"`

	// Auth says who may call; without it, everybody who can connect.
	Auth Auth `yaml:"auth"`

	// StateKeys seal what a client of 2026 holds while a call of it waits for its
	// answers to a server that can only ask while it works. The first key seals and
	// all of them open. All replicas of a deployment need the same; without any, the
	// embedded store has a key of its own, and with a store that replicas share such
	// clients are not asked. To replace a key, put the new one behind it on all
	// replicas, then before it, and take the old one out once no call can wait any
	// more that was parked under it.
	StateKeys []StateKey `yaml:"state_keys"`

	// AllowedOrigins are the web origins whose pages may call the gateway,
	// exactly as a browser sends them: https://app.example.com. Loopback
	// origins are always allowed while listening on a loopback address.
	// Requests without an Origin header do not come from a page and pass.
	AllowedOrigins []string `yaml:"allowed_origins"`

	// AllowedHosts are names or IP addresses, without port, that requests may
	// name in their Host header while the gateway listens on a loopback address;
	// loopback names always may. This is what stops DNS rebinding.
	AllowedHosts []string `yaml:"allowed_hosts"`

	// MaxBody is the largest request body accepted from a client, in bytes.
	MaxBody Size `yaml:"max_body" min:"1KiB" max:"1GiB"`

	// ClientTimeout is how long a client may take for each 64 KiB of what it sends
	// or is sent before it counts as gone. A client may be slow, however large
	// the message; it must not stop.
	ClientTimeout time.Duration `yaml:"client_timeout" min:"1s"`

	// KeepAlive is the silence after which an answer that was to be JSON
	// becomes an event stream, and the interval of the comments that keep an
	// event stream open.
	KeepAlive time.Duration `yaml:"keep_alive" min:"100ms"`

	// SessionIdle is how long a client session of the 2025 protocol versions
	// is kept without any request or open stream.
	SessionIdle time.Duration `yaml:"session_idle" min:"1s"`

	// MaxSessions is how many such client sessions may exist at a time.
	MaxSessions int `yaml:"max_sessions" min:"1"`

	// ResumeAfter is how long an answer or a stream in such a session lasts
	// before it is kept, so that a client whose connection broke can get the rest of it by
	// Last-Event-ID, from any replica. Shorter answers cost the store nothing.
	ResumeAfter time.Duration `yaml:"resume_after" min:"10ms"`

	// SessionLogMessages is how many messages of such streams are kept per
	// session. The oldest go first.
	SessionLogMessages int `yaml:"session_log_messages" min:"1"`

	// SessionLogBytes is the bound in bytes. The newest message is kept even if
	// it is larger.
	SessionLogBytes Size `yaml:"session_log_bytes" min:"1KiB" max:"1GiB"`

	// Telemetry says what traces, metrics and logs may carry. Where they go
	// is set by the usual OTEL_* environment variables.
	Telemetry Telemetry `yaml:"telemetry"`

	// Upstreams are the MCP servers behind the gateway, each at a path of its
	// own. At least one is needed.
	Upstreams []*Upstream `yaml:"upstreams"`
}

// Log says what the process logs to standard error.
type Log struct {
	// Level is the least severe level that is logged: debug, info, warn or
	// error.
	Level LogLevel `yaml:"level"`

	// Format is text for people or json for machines.
	Format LogFormat `yaml:"format"`
}

// Telemetry says what traces, metrics and logs may carry.
type Telemetry struct {
	// Baggage is the list of W3C baggage keys that are passed on to upstreams.
	// All other baggage is dropped, because it may come from anybody.
	Baggage []string `yaml:"baggage"`
}

// StoreEmbedded is the Store in the process itself, which no other shares.
const StoreEmbedded = "embedded"

// Default returns the configuration of an empty file: every default, and no
// upstream yet.
func Default() *Config {
	return &Config{
		ClientTimeout: 30 * time.Second,

		Listen:       "127.0.0.1:8080",
		Store:        StoreEmbedded,
		KeyPrefix:    "tg",
		Heartbeat:    5 * time.Second,
		StoreTimeout: 3 * time.Second,
		Settle:       30 * time.Second,
		DrainTimeout: 30 * time.Second,
		Log:          Log{Level: LevelInfo, Format: FormatText},
		MaxBody:      4 * MiB,
		KeepAlive:    15 * time.Second,
		SessionIdle:  time.Hour,
		MaxSessions:  10_000,

		ResumeAfter:        5 * time.Second,
		SessionLogMessages: 1000,
		SessionLogBytes:    4 * MiB,
	}
}

// FromFlags returns the defaults with one upstream, named "mcp" and served at
// /mcp: what "taskgate serve --upstream URL" runs. The URL is checked by
// [Config.Validate], not here.
func FromFlags(upstreamURL string) *Config {
	c := Default()
	u := NewUpstream("mcp", upstreamURL)
	u.Path = "/mcp"
	c.Upstreams = []*Upstream{u}
	return c
}
