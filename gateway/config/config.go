// Package config is taskgate's configuration: its keys, their defaults, and the checks of a file.
//
// The doc comments of the struct fields below are the manual. The schema that editors use (config.schema.json)
// is generated from them, and a test keeps config.example.yaml in step with them.
//
// # The file
//
// A file is one YAML document whose keys are those of [Config]. Unknown and repeated keys are mistakes, and
// [Load] reports every mistake of a file at once with its position, so that one round of editing is enough. An
// error in the syntax of YAML is reported alone.
//
// # Variables
//
// ${NAME} and ${NAME:-default} are replaced in values only, after the YAML is parsed, so the value of a
// variable cannot change the structure of the file. An unset variable needs a default; the default also stands
// in for a variable that is set but empty. $$ is a single dollar sign, and a dollar sign before anything else
// stands for itself. In flow style ({a: b}) a value with a variable must be quoted.
//
// ${file:PATH} is replaced by the content of a file, without the line breaks at its end. The path is relative
// to the configuration file.
//
// # Values
//
// Durations are written as in Go (300ms, 5s, 1h30m), sizes as whole bytes or with KiB, MiB or GiB.
package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
)

//go:generate go run taskgate/internal/configschema

// Config is one configuration. [Load], [Parse], [FromFlags] and [Default] make one with every default filled
// in. It is constant afterwards, so it may be read from any goroutine.
type Config struct {
	// Listen is the TCP address to serve on, as host:port. An empty host means
	// every interface, port 0 any free port.
	Listen string `yaml:"listen"`

	// TLS has clients connect by https. The addresses of admin do not have it.
	TLS ListenerTLS `yaml:"tls"`

	// Admin is the TCP address, as host:port, on which an operator's tools ask
	// after this replica: GET /healthz (it serves), GET /metrics, and GET /readyz (it should get
	// requests: it is not stopping, and reaches the store and an upstream), and POST /reload. It
	// takes no key for these, so it belongs on an address that only they reach. The console and the
	// interface for operators, which show tasks and cancel them, are there as well: with
	// admin_auth, or on a loopback address with a token that the log has at the start. Without it
	// there is no such listener.
	Admin string `yaml:"admin"`

	// AdminAuth says who may use the console and the interface for operators: they see everybody's
	// tasks, and may cancel them.
	AdminAuth Auth `yaml:"admin_auth"`

	// AdminContent set to on shows operators the arguments and results of calls, the questions
	// of servers and their answers. Whose tasks there are, they see in any case.
	AdminContent Switch `yaml:"admin_content"`

	// TraceURL is where the console finds the trace of a task: an address with {trace_id} in it.
	TraceURL string `yaml:"trace_url"`

	// Store is where tasks and sessions are kept: file:FOLDER (in a folder that this
	// replica has for itself), file (in such a folder below the user's state
	// folder), embedded (in memory, lost when the replica ends) or the URL of a Redis:
	// redis://[user:pass@]host:6379/0, redis+cluster://host:6379,host:6379 or
	// redis+sentinel://host:26379,host:26379/mymaster/0. With rediss in place
	// of redis the connection uses TLS.
	Store string `yaml:"store"`

	// StoreTLS says how to connect to a Redis with TLS, where the authorities of the system
	// do not know its certificate, or it wants one.
	StoreTLS ClientTLS `yaml:"store_tls"`

	// KeyPrefix begins every key and channel in the store. Replicas with the
	// same store and prefix form one deployment.
	KeyPrefix string `yaml:"key_prefix" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$" says:"letters, digits, '.', '_' and '-', at most 32"`

	// Heartbeat is how long a replica may be silent before it counts as lost
	// and its tasks are taken over. It beats every third of this. All replicas
	// of a deployment should agree on it.
	Heartbeat time.Duration `yaml:"heartbeat" min:"100ms"`

	// StoreWait is how long a request that reads, answers or cancels a task waits for a store
	// that is unavailable before its client is told so. Some clients take one error for the
	// end of the task.
	StoreWait time.Duration `yaml:"store_wait" min:"0s"`

	// WaitReplicas is how many Redis replicas must confirm the creation and
	// the end of a task before either is reported, and that a call is sent before
	// it is, where it would be sent again if its replica was lost. With 0 a failover
	// of Redis may lose the last moments before it. Only a Redis has replicas.
	WaitReplicas int `yaml:"wait_replicas" min:"0"`

	// DrainDelay is how long a stopping replica takes requests as before while
	// /readyz says that it should get none, so that whatever balances between
	// replicas has noticed before it refuses any. It does not wait without admin.
	DrainDelay time.Duration `yaml:"drain_delay" min:"0s"`

	// DrainTimeout is how long a stopping replica waits for open requests
	// before it closes them. Running tasks are handed to other replicas.
	DrainTimeout time.Duration `yaml:"drain_timeout" min:"0s"`

	// Log says what is logged, and how.
	Log Log `yaml:"log"`

	// PublicURL is how clients reach the gateway: https://host or https://host:port, without
	// a path. What clients are told of addresses of the gateway begins with it.
	PublicURL string `yaml:"public_url"`

	// Auth says who may call, at every upstream that has no auth of its own; without it,
	// everybody who can connect.
	Auth Auth `yaml:"auth"`

	// Audit is where records of who did what go, one line of JSON each: stdout, otel (where
	// OTEL_* variables send logs), or the name of a file, relative to the configuration file.
	// There is a record of each task that is created or cancelled, each result that is read,
	// each question that is answered, and each request that is refused for who sends it. None
	// has what was asked or answered. Without it there are none.
	Audit string `yaml:"audit"`

	// StateKeys seal what a client of 2026 holds while a call of it waits for its
	// answers to a server that can only ask while it works. The first key seals and
	// all of them open. All replicas of a deployment need the same; without any, a
	// store in a folder or in memory has a key of its own, and with a Redis such
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
	// loopback names and that of public_url always may. This is what stops DNS rebinding.
	// forward_host sends these names only, and that of public_url.
	AllowedHosts []string `yaml:"allowed_hosts"`

	// MaxBody is the largest request body accepted from a client, in bytes.
	MaxBody Size `yaml:"max_body" min:"1KiB" max:"1GiB"`

	// MaxBytesInFlight is how many bytes of requests and of their answers each
	// replica holds in memory at a time. What would be more waits until others are
	// done. Messages of up to 4 KiB are not counted. It is at least twice
	// max_body and the largest max_result together. The replica takes about three times as much
	// memory, and what it needs besides. 0 follows the memory limit of the replica: an eighth of it,
	// 256 MiB at most.
	MaxBytesInFlight Size `yaml:"max_bytes_in_flight" min:"0"`

	// MaxCallsPerOwner is how many requests of one owner (a caller that has signed in) each replica has in flight
	// that wait for a server or for a task, those included whose client has gone. One more is
	// refused with 429. 0 is any number.
	MaxCallsPerOwner int `yaml:"max_calls_per_owner" min:"0"`

	// Rate is how many requests per second a caller may send to each replica in the long run, and how
	// many at once after a pause: a caller whose credentials the replica remembers or, for every other
	// request, the address that the connection comes from. One that comes too early is refused
	// with 429. 0 is any number, and nothing is counted then.
	Rate int `yaml:"rate" min:"0" max:"100000"`

	// ProgressKeepAlive is after how long without progress a client that waits for a call, and
	// has given a progress token, is sent progress of the gateway's own. Many clients count
	// their time limit anew then. 0 sends none.
	ProgressKeepAlive time.Duration `yaml:"progress_keep_alive" min:"0s"`

	// MaxSessionsPerOwner is how many client sessions of the 2025 protocol versions one
	// owner may have at a time. A new one beyond it is refused with 429.
	MaxSessionsPerOwner int `yaml:"max_sessions_per_owner" min:"1"`

	// Limits are those that follow the memory limit of the replica, for those who need other values.
	Limits Limits `yaml:"limits"`

	// ResumeAfter is how long an answer or a stream in such a session lasts
	// before it is kept, so that a client whose connection broke can get the rest of it by
	// Last-Event-ID, from any replica. Shorter answers cost the store nothing.
	ResumeAfter time.Duration `yaml:"resume_after" min:"10ms"`

	// Baggage is the list of W3C baggage keys that are passed on to upstreams.
	// All other baggage is dropped, because it may come from anybody.
	Baggage []string `yaml:"baggage"`

	// Upstreams are the MCP servers behind the gateway, each at a path of its
	// own. At least one is needed.
	Upstreams []*Upstream `yaml:"upstreams"`

	// Fixed is what no file changes.
	Fixed `yaml:"-"`
}

// Fixed are times and bounds that are the same for every deployment. Code that makes a Config by hand, as tests
// do, may change them.
type Fixed struct {
	// StoreTimeout is how long a request waits for the store, for all that it needs of it together, before its
	// client is told that the store is unavailable, or its call goes on without becoming a task. A store that
	// does not answer for a third of it is away, and requests stop waiting until it answers again.
	StoreTimeout time.Duration

	// ClientTimeout is how long a client may take for each 64 KiB of what it sends or is sent: it may be slow with
	// a message of any size, but must go on.
	ClientTimeout time.Duration

	// KeepAlive is the silence after which an answer that was to be JSON becomes an event stream, and the
	// interval of the comments that keep an event stream open.
	KeepAlive time.Duration

	// SessionIdle is how long a client session of the 2025 protocol versions is kept without any request or open stream. Some clients never begin
	// another one (python-sdk #1676).
	SessionIdle time.Duration
}

// The values of audit that are no file names.
const (
	AuditStdout = "stdout"
	AuditOTel   = "otel"
)

// Log says what a replica logs to standard error.
type Log struct {
	// Level is the least severe level that is logged: debug, info, warn or
	// error.
	Level LogLevel `yaml:"level"`

	// Format is text for people or json for machines.
	Format LogFormat `yaml:"format"`

	// Access set to on logs each HTTP request, at level info: at most 100 in ten seconds, and the
	// number of the others.
	Access Switch `yaml:"access"`
}

// StoreEmbedded is the Store in the memory of the replica, and StoreFile the one in a folder of its own.
// storeFolder begins the name of a folder.
const (
	StoreEmbedded = "embedded"
	StoreFile     = "file"
	storeFolder   = StoreFile + ":"
)

// OwnsStore reports whether this replica alone has the store.
func (c *Config) OwnsStore() bool {
	_, named := c.StoreFolder()
	return named || c.Store == StoreFile || c.Store == StoreEmbedded
}

// StoreFolder is the folder of the store, if one is named.
func (c *Config) StoreFolder() (path string, named bool) {
	return strings.CutPrefix(c.Store, storeFolder)
}

// WithStoreFolder names the folder of the store.
func (c *Config) WithStoreFolder(path string) { c.Store = storeFolder + path }

// Default returns the configuration of an empty file: every default, and no upstream yet.
func Default() *Config {
	return &Config{
		Listen:              "127.0.0.1:8080",
		Store:               StoreFile,
		KeyPrefix:           "tg",
		AdminContent:        Off,
		Heartbeat:           5 * time.Second,
		StoreWait:           25 * time.Second,
		DrainDelay:          5 * time.Second,
		DrainTimeout:        30 * time.Second,
		Log:                 Log{Level: LevelInfo, Format: FormatText, Access: Off},
		MaxBody:             4 * MiB,
		ProgressKeepAlive:   25 * time.Second,
		MaxSessionsPerOwner: 1000,
		MaxCallsPerOwner:    5000,
		ResumeAfter:         200 * time.Millisecond,
		Fixed: Fixed{
			StoreTimeout: 3 * time.Second, ClientTimeout: 30 * time.Second, KeepAlive: 15 * time.Second, SessionIdle: 24 * time.Hour,
		},
	}
}

// LargestCall is the number of bytes that the largest allowed call needs: its request and its answer, with room
// to see their ends.
func (c *Config) LargestCall() Size {
	var answer Size
	for _, u := range c.Upstreams {
		answer = max(answer, u.MaxResult)
	}
	return c.MaxBody + answer + 8*KiB
}

// FromFlags returns the defaults with one upstream, named "mcp" and served at /mcp: the configuration of
// "taskgate serve --upstream URL". [Config.Validate] checks the URL.
func FromFlags(upstreamURL string) *Config {
	c := Default()
	u := NewUpstream("mcp", upstreamURL)
	u.Path = "/mcp"
	c.Upstreams = []*Upstream{u}
	return c
}

// changeable are the keys that a running process takes over. All others are read at the start only.
var changeable = []string{
	"drain_delay", "drain_timeout", "public_url", "auth", "allowed_origins", "allowed_hosts", "max_body", "max_calls_per_owner",
	"rate", "progress_keep_alive", "max_sessions_per_owner", "resume_after", "upstreams",
}

// Over returns the configuration as a process that runs with old can take it over: keys that are only read at
// the start keep their old values, as does an auth that c lacks: a file that is half-written, or of another gateway,
// must not let everybody in. restart are those keys that differ.
func (c *Config) Over(old *Config) (next *Config, restart []string) {
	merged := *c
	from, to := reflect.ValueOf(old).Elem(), reflect.ValueOf(&merged).Elem()
	for i := range to.NumField() {
		key := to.Type().Field(i).Tag.Get("yaml")
		opens := key == "auth" && old.Auth.Required() && !c.Auth.Required()
		if slices.Contains(changeable, key) && !opens || reflect.DeepEqual(from.Field(i).Interface(), to.Field(i).Interface()) {
			continue
		}
		to.Field(i).Set(from.Field(i))
		restart = append(restart, key)
	}
	return &merged, restart
}

// Hash names the configuration, with the content of the files of upstreams: different configurations have
// different hashes, which are the same on all replicas. It leaves out the addresses on which a replica listens,
// and reveals no values.
func (c *Config) Hash() string {
	h := sha256.New()
	for _, u := range c.Upstreams {
		_, _ = io.WriteString(h, u.TLS.Files())
	}
	same := *c
	same.Listen, same.Admin = "", ""
	_ = json.NewEncoder(h).Encode(&same) // plain values can be encoded
	return hex.EncodeToString(h.Sum(nil)[:6])
}
