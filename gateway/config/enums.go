package config

// TaskMode says when a call of a tool becomes a task.
type TaskMode string

// The values of tasks.
const (
	TasksNever    TaskMode = "never"    // the call blocks, as without the gateway
	TasksAuto     TaskMode = "auto"     // when it outlasts its grace or asks for input
	TasksAlways   TaskMode = "always"   // at once, for clients that can take tasks
	TasksRequired TaskMode = "required" // at once, and other clients are refused
)

// Values lists the modes in the order of the manual.
func (TaskMode) Values() []string { return []string{"never", "auto", "always", "required"} }

// ProgressMode says what an upstream's progress does to a task.
type ProgressMode string

// The values of progress.
const (
	ProgressStatus  ProgressMode = "status"  // it becomes the status message
	ProgressContent ProgressMode = "content" // its messages are pieces of the result
	ProgressOff     ProgressMode = "off"     // it is dropped
)

// Values lists the modes in the order of the manual.
func (ProgressMode) Values() []string { return []string{"status", "content", "off"} }

// RecoverMode says what becomes of a call whose replica is lost.
type RecoverMode string

// The values of recover.
const (
	RecoverFail  RecoverMode = "fail"  // the task fails
	RecoverAuto  RecoverMode = "auto"  // the tool runs again if the server says that it may
	RecoverRetry RecoverMode = "retry" // the tool runs again
)

// Values lists the modes in the order of the manual.
func (RecoverMode) Values() []string { return []string{"fail", "auto", "retry"} }

// RepeatMode says what becomes of a call whose client gives up, and of the same call made again.
type RepeatMode string

// The values of repeat.
const (
	RepeatAuto RepeatMode = "auto" // the client's next call picks it up, if it is the same and comes soon
	RepeatJoin RepeatMode = "join" // any later call that is the same does
	RepeatRun  RepeatMode = "run"  // the call is cancelled, and the next one runs
)

// Values lists the modes in the order of the manual.
func (RepeatMode) Values() []string { return []string{"auto", "join", "run"} }

// RightsMode says what a caller meets who lacks a scope of a tool.
type RightsMode string

// The values of missing_rights.
const (
	RightsChallenge RightsMode = "challenge" // the tool is listed, and a call is refused with the scopes that it needs
	RightsHide      RightsMode = "hide"      // the tool is not listed, and a call is answered as one of an unknown tool
)

// Values lists the modes in the order of the manual.
func (RightsMode) Values() []string { return []string{"challenge", "hide"} }

// EarlyMode says what a server's question does that comes before there is a task.
type EarlyMode string

// The values of early_input.
const (
	EarlyTask EarlyMode = "task" // the task is made at once, and asks
	EarlyMRTR EarlyMode = "mrtr" // the client is asked first, then the call may become a task
)

// Values lists the modes in the order of the manual.
func (EarlyMode) Values() []string { return []string{"task", "mrtr"} }

// Era is the protocol generation that an upstream speaks.
type Era string

// The values of era.
const (
	EraAuto   Era = "auto"   // that of the client if the server speaks it
	EraLegacy Era = "legacy" // initialize and sessions
	EraModern Era = "modern" // 2026-07-28 and its like
)

// Values lists the eras in the order of the manual.
func (Era) Values() []string { return []string{"auto", "legacy", "modern"} }

// Transport says how messages travel to a server with a URL.
type Transport string

// The values of transport.
const (
	TransportAuto Transport = "auto" // that of the server
	TransportHTTP Transport = "http" // Streamable HTTP
	TransportSSE  Transport = "sse"  // HTTP+SSE of 2024-11-05
)

// Values lists the choices in the order of the manual.
func (Transport) Values() []string { return []string{"auto", "http", "sse"} }

// UpstreamTasks says for which calls tasks of a server's own are used.
type UpstreamTasks string

// The values of upstream_tasks.
const (
	UpstreamTasksAuto   UpstreamTasks = "auto"   // for tools that need one
	UpstreamTasksAlways UpstreamTasks = "always" // for every tool that can be called so
	UpstreamTasksNever  UpstreamTasks = "never"  // for no tool
)

// Values lists the choices in the order of the manual.
func (UpstreamTasks) Values() []string { return []string{"auto", "always", "never"} }

// WithoutTasks says what a slow call does to a client that cannot take a task.
type WithoutTasks string

// The values of without_tasks.
const (
	WithoutTasksAuto   WithoutTasks = "auto"   // handle for clients that are known to give up, else block
	WithoutTasksBlock  WithoutTasks = "block"  // the call blocks until it is answered
	WithoutTasksHandle WithoutTasks = "handle" // it becomes a task, which a tool reads
)

// Values lists the choices in the order of the manual.
func (WithoutTasks) Values() []string { return []string{"auto", "block", "handle"} }

// Unverified says what becomes of callers whose token cannot be verified.
type Unverified string

// The values of unverified.
const (
	UnverifiedBlock Unverified = "block" // they get no tasks
	UnverifiedToken Unverified = "token" // their tasks belong to the token
)

// Values lists the choices in the order of the manual.
func (Unverified) Values() []string { return []string{"block", "token"} }

// LogLevel is the least severe level that is logged. Its values are those that
// slog.Level reads.
type LogLevel string

// The values of log.level.
const (
	LevelDebug LogLevel = "debug"
	LevelInfo  LogLevel = "info"
	LevelWarn  LogLevel = "warn"
	LevelError LogLevel = "error"
)

// Values lists the levels from the most to the least talkative.
func (LogLevel) Values() []string { return []string{"debug", "info", "warn", "error"} }

// LogFormat is how log records are written.
type LogFormat string

// The values of log.format.
const (
	FormatText LogFormat = "text" // key=value, for people
	FormatJSON LogFormat = "json" // one object a line, for machines
)

// Values lists the formats in the order of the manual.
func (LogFormat) Values() []string { return []string{"text", "json"} }

// Switch turns something on or off.
type Switch string

// The values of a switch.
const (
	On  Switch = "on"
	Off Switch = "off"
)

// Values lists the positions in the order of the manual.
func (Switch) Values() []string { return []string{"on", "off"} }
