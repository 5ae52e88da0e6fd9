package config

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"taskgate/shim"
)

// Upstream is one MCP server behind the gateway. The tag needs names the way to it, url or command, without
// which a key means nothing.
type Upstream struct {
	// Name identifies the upstream in logs, metrics and stored tasks. Renaming
	// an upstream orphans its tasks.
	Name string `yaml:"name" pattern:"^[a-z0-9][a-z0-9_-]{0,62}$" says:"lower-case letters, digits, '_' and '-', beginning with a letter or digit, at most 63" required:"true"`

	// Path is where clients reach it, /<name>/mcp unless given.
	Path string `yaml:"path"`

	// URL is the server's MCP endpoint, http or https. Credentials belong in
	// headers. An upstream has either this key or command.
	URL string `yaml:"url"`

	// Transport says how messages travel to the server at url: http is Streamable HTTP,
	// sse is HTTP+SSE of 2024-11-05. auto finds out, at the first request, which it is.
	Transport Transport `yaml:"transport" needs:"url"`

	// SSEEndpoint is for a server of HTTP+SSE behind a path prefix that it does not know: this URL, without a query,
	// replaces the origin and the path of the address that the server names for messages. The query stays the
	// server's.
	SSEEndpoint string `yaml:"sse_endpoint" needs:"url"`

	// TLS says how to connect to the server by https, where the authorities of the system do
	// not know its certificate, or it wants one.
	TLS ClientTLS `yaml:"tls"`

	// Command is the program of a server that speaks over stdio. The gateway starts it
	// when it is first needed. A name without a slash is looked up in the gateway's PATH.
	Command string `yaml:"command"`

	// Args are the arguments of command.
	Args []string `yaml:"args" needs:"command"`

	// Env is the whole environment of command: it inherits nothing from the gateway, unless it is
	// inherit, which gives it the gateway's own, with what that has of secrets.
	// Most programs need PATH, and programs such as npx need HOME.
	Env map[string]string `yaml:"env" needs:"command" words:"inherit="`

	// Cwd is the folder that command runs in; without it, the gateway's own.
	Cwd string `yaml:"cwd" needs:"command"`

	// MaxProcesses is how many processes of command there are at a time on each replica,
	// those that are ending included; a principal may have half of them. One more
	// takes the place of the one that has not been used for longest; if all are in use, the
	// call is refused.
	MaxProcesses int `yaml:"max_processes" needs:"command" min:"1"`

	// Auth says who may call this upstream, in place of the auth of all.
	Auth *UpstreamAuth `yaml:"auth"`

	// Headers are sent with every request to the server. Headers that belong
	// to the protocol or to the connection cannot be set.
	Headers map[string]string `yaml:"headers" needs:"url; use env"`

	// ForwardHeaders are headers of a client's request that go to the server with it, and with
	// every request that is made for it. Clients whose headers differ share no session with the
	// server. The values are kept in memory only: if a replica is lost, so are the calls that
	// ran on it with such headers.
	ForwardHeaders []string `yaml:"forward_headers" needs:"url"`

	// ExposeHeaders are headers of the server's answer to a client's request that the client
	// gets, too, where the answer has come before that to the client begins. A name may end
	// with * for all that begin so.
	ExposeHeaders []string `yaml:"expose_headers" needs:"url"`

	// ForwardHost sends the host that the client has asked for in place of that of url, with
	// X-Forwarded-Host, X-Forwarded-Proto and X-Forwarded-For, so that a server that lived
	// under the name of the gateway goes on to know itself by it.
	ForwardHost Switch `yaml:"forward_host" needs:"url"`

	// Era is the protocol generation to speak to the server: legacy (with
	// initialize and sessions), modern (2026, without), or auto, which is that of
	// the client where the server speaks it, and else the other one.
	Era Era `yaml:"era"`

	// UpstreamTasks says for which calls a server that has tasks of its own makes one:
	// auto, for tools that cannot be called otherwise; always, for every tool that can
	// be called so, which lets a call go on when its replica is lost; never, for none. A
	// server of 2026-07-28 decides by itself, unless it is never; under auto it is not asked
	// for one where the caller waits and hears progress, which is more without a task. Clients
	// do not see these tasks.
	UpstreamTasks UpstreamTasks `yaml:"upstream_tasks"`

	// Eras are those that clients are offered: auto, both, or a list of legacy and modern. A
	// request of another one is answered as by a server that does not know its method.
	// With auto both are served, but a legacy server that is known to keep state for each
	// client, as a browser does, does not offer the modern one at server/discover: clients that
	// can fall back then have a session each, as directly, and lose the tasks extension. Nor does
	// a server that asks for its client's roots outside of any call, to a client that has roots.
	Eras []string `yaml:"eras" words:"auto=,both=legacy modern"`

	// StartTimeout is how long the server may take to answer the requests that
	// find out its era and open a session. With command it includes the start of the
	// program.
	StartTimeout time.Duration `yaml:"start_timeout" min:"1ms"`

	// IdleTimeout is how long a response of the server may be silent before
	// the call is given up. 0 means for ever, the default: a synchronous tool
	// may be silent for hours, and timeout ends it all the same.
	IdleTimeout time.Duration `yaml:"idle_timeout" min:"0s"`

	// MaxResult is the largest answer accepted from the server, and the largest single event of
	// a stream, in bytes. With command it is the largest message; the process of one that sends a
	// larger one is ended, and so is the connection to a server of HTTP+SSE.
	MaxResult Size `yaml:"max_result" min:"1KiB" max:"1GiB"`

	// Concurrency is how many calls each replica has in flight to the server.
	// 0 means any number.
	Concurrency int `yaml:"concurrency" min:"0"`

	// MaxTasksPerOwner is how many tasks of one owner each replica runs at a
	// time. A call that would be one more goes on blocking, or is refused where the
	// client or the tool insists on a task.
	MaxTasksPerOwner int `yaml:"max_tasks_per_owner" min:"1"`

	// ResponseModes offers clients of 2025-11-25 to choose how a call is
	// answered, streaming included (SEP-1905).
	ResponseModes Switch `yaml:"response_modes"`

	// WithoutTasks says what a slow call does to a client that cannot take a task:
	// block until it is answered, or handle. Under handle such a call becomes a task
	// all the same after without_tasks_after, or at once where tasks is required; its
	// answer is a text with the task's id, and the tool task_result, which the client's
	// list of tools then has, waits for the result. It hides a tool of the server of that name. Tools
	// that may become tasks are listed to such a client without their output schema. auto is
	// handle for agents that give up after a fixed time whatever they hear, and block for others.
	WithoutTasks WithoutTasks `yaml:"without_tasks"`

	// WithoutTasksAfter is how long a call of such a client may take before it
	// becomes a task, and how long one call of task_result waits. auto goes by the name of
	// the client: some minutes for known agents, 45s for others.
	WithoutTasksAfter time.Duration `yaml:"without_tasks_after" min:"1ms" auto:"true"`

	// Defaults is the policy of every tool that no entry of tools matches, and
	// the source of each key that a matching entry leaves out.
	Defaults Tool `yaml:"defaults"`

	// Tools are policies for tools by name, or by what the server says of them.
	// The first entry that matches a tool decides, and no other entry is looked at.
	Tools []Rule `yaml:"tools"`

	// Removed says that the upstream is gone from the file: its tasks can be read until they expire.
	// It is outside of the file.
	Removed bool `yaml:"-"`
}

// Auto is the value of a duration that the gateway chooses by itself.
const Auto time.Duration = -1

// Tool is the complete policy of one tool: it needs no other defaults.
type Tool struct {
	// Tasks says when a call becomes a task: auto (when it takes longer than
	// grace or asks for input), always (at once), required (at once, and
	// clients of 2026-07-28 that take no tasks are refused, unless without_tasks
	// has something else for them; for others the call blocks) or never.
	Tasks TaskMode `yaml:"tasks"`

	// Grace is how long a call may take before it becomes a task, where tasks is
	// auto. auto learns it from the last calls of the tool: 30s at first, no time for a tool
	// whose calls take longer, 50s for one that answers with images.
	Grace time.Duration `yaml:"grace" min:"0s" auto:"true"`

	// TTL is how long a finished task and its result are kept for the client, and the
	// longest time that a client may ask for.
	TTL time.Duration `yaml:"ttl" min:"1ms"`

	// PollInterval is how often clients are told to ask for a task's status. auto grows with
	// the age of the task, from 1s to 15s.
	PollInterval time.Duration `yaml:"poll_interval" min:"50ms" auto:"true"`

	// Timeout ends a call that is still running: it fails and is cancelled at
	// the server.
	Timeout time.Duration `yaml:"timeout" min:"1ms"`

	// Progress says what the server's progress does to a task: status shows
	// it as the task's status message, and as partial results to clients that
	// take them; content does that too, and vouches that the messages are
	// pieces of the result, in order, for clients that stream it; off drops it.
	Progress ProgressMode `yaml:"progress"`

	// Recover says what to do when the replica that ran the call is lost and
	// the call cannot be resumed: fail the task, or retry, which runs the tool
	// again. Choose retry only for tools that may run twice. auto retries those
	// that the server marks as read-only or idempotent (readOnlyHint,
	// idempotentHint), both when the call was made and now.
	Recover RecoverMode `yaml:"recover"`

	// Rerun lets operators run the call of a failed task again, as a new task of the same
	// owner: its arguments are kept until its ttl. Choose it only for tools that may run twice.
	// It is not for upstreams under passthrough or forward_headers: nothing of a client's
	// request goes out without that client.
	Rerun Switch `yaml:"rerun"`

	// EarlyInput says what a question of the server does that comes before there
	// is a task, to a client that takes tasks: task makes one at once, which asks;
	// mrtr asks the client first, and the answered call may become a task then.
	// What a modern server asks before there is a task is passed on in any case.
	EarlyInput EarlyMode `yaml:"early_input"`

	// InputTimeout is how long a question of the server waits for the client's
	// answer. Then an elicitation is answered with cancel, and any other question
	// with an error. auto is the ttl for a question in a task, and 10m for others.
	InputTimeout time.Duration `yaml:"input_timeout" min:"1s" auto:"true"`

	// Repeat says what becomes of a call whose client gives up waiting, after 20s at least, and
	// of the same call made again: auto keeps the call, and the client's next call picks it up if
	// it is the same and comes within 60s; join does so with any later call that is the same, and
	// also where a connection ended, or the call was cancelled without a reason; run cancels the
	// call at the server, and the next one runs.
	Repeat RepeatMode `yaml:"repeat"`

	// Linger is how long such a call is kept, and its result. Then it is cancelled at the server.
	Linger time.Duration `yaml:"linger" min:"1s"`

	// Concurrency is how many calls of the tool each replica has in flight.
	// 0 means any number.
	Concurrency int `yaml:"concurrency" min:"0"`

	// Scopes are what a token needs to call the tool, besides those of auth.jwt.scopes, with
	// one space between two. Without them every caller may.
	Scopes string `yaml:"scopes"`

	// MissingRights says what a caller meets who lacks one of scopes: challenge lists the tool,
	// and refuses a call with the scopes that it needs; hide leaves the tool out of lists, and
	// has a call answered as one of a tool that the server does not have.
	MissingRights RightsMode `yaml:"missing_rights"`

	// Principals are the only callers that see the tool and may call it; without them every
	// caller does. An entry is the name of a key or of a user in trusted_header, or CLAIM=VALUE
	// for those whose verified token has that value, alone or in a list. The tool is hidden
	// from all others, whatever missing_rights says.
	Principals []string `yaml:"principals"`
}

// restricted reports whether some callers may not call the tool.
func (t *Tool) restricted() bool { return t.Scopes != "" || len(t.Principals) > 0 }

// hides reports whether the tool is hidden from some callers.
func (t *Tool) hides() bool {
	return t.Scopes != "" && t.MissingRights == RightsHide || len(t.Principals) > 0
}

// Rule gives the tools that match a policy of their own.
type Rule struct {
	// Match says which tools the entry is for: a text alone is a glob on the tool's name, and keys
	// name annotations, too.
	Match Match `yaml:"match" alone:"Name" required:"true"`

	// Job is for a tool that starts a job and answers with its id at once: the gateway follows the
	// job by calls of the server's other job tools, and its result becomes that of the call.
	Job *Job `yaml:"job"`

	// Tool is the policy, with each key that the entry left out taken from the
	// upstream's defaults. Rules made by hand start from Upstream.Defaults.
	Tool `yaml:",inline"`
}

// NewUpstream returns an upstream with every default, served at /<name>/mcp.
func NewUpstream(name, url string) *Upstream {
	return &Upstream{
		Name:              name,
		Path:              defaultPath(name),
		URL:               url,
		Era:               EraAuto,
		UpstreamTasks:     UpstreamTasksAuto,
		StartTimeout:      time.Minute,
		Transport:         TransportAuto,
		ForwardHost:       Off,
		MaxProcesses:      32,
		MaxResult:         32 * MiB,
		MaxTasksPerOwner:  1000,
		ResponseModes:     Off,
		WithoutTasks:      WithoutTasksAuto,
		WithoutTasksAfter: Auto,
		Defaults:          DefaultTool(),
	}
}

// DefaultTool returns the policy of a tool that the configuration does not mention.
func DefaultTool() Tool {
	return Tool{
		Tasks:        TasksAuto,
		Grace:        Auto,
		TTL:          24 * time.Hour,
		PollInterval: Auto,
		Timeout:      24 * time.Hour,
		Progress:     ProgressStatus,
		Recover:      RecoverFail,
		Rerun:        Off,
		EarlyInput:   EarlyTask,
		InputTimeout: Auto,
		Repeat:       RepeatAuto,
		Linger:       5 * time.Minute,

		MissingRights: RightsChallenge,
	}
}

// Tool returns the policy of a tool, by its name and what the server says of it: the first rule that matches, else the
// defaults. It says nothing of who may call (RightsOf). It allocates nothing for usual names and may be called for every
// request.
func (u *Upstream) Tool(name string, says shim.Hints) Tool {
	if i := u.RuleOf(name, says); i >= 0 {
		return u.Tools[i].Tool
	}
	return u.Defaults
}

// RuleOf is the index of the first rule that matches a tool; -1 if none does.
func (u *Upstream) RuleOf(name string, says shim.Hints) int {
	for i := range u.Tools {
		if u.Tools[i].Match.Fits(name, says) {
			return i
		}
	}
	return -1
}

// RightsOf returns the policy that says who may call the tool of that name: the first rule that matches by the name
// alone, else the defaults. The server has no say in it.
func (u *Upstream) RightsOf(name string) Tool {
	for i := range u.Tools {
		if m := u.Tools[i].Match; !m.UsesHints() && m.Fits(name, shim.Hints{}) {
			return u.Tools[i].Tool
		}
	}
	return u.Defaults
}

// UsesHints reports whether the policy of a tool depends on what the server says of it.
func (u *Upstream) UsesHints() bool {
	return u.anyTool(func(t *Tool) bool { return t.Recover == RecoverAuto }) || slices.ContainsFunc(u.Tools, func(r Rule) bool { return r.Match.UsesHints() })
}

// MakesTasks reports whether any tool may be called as a task.
func (u *Upstream) MakesTasks() bool {
	return u.Defaults.Tasks != TasksNever || slices.ContainsFunc(u.Tools, func(r Rule) bool { return r.Tasks != TasksNever })
}

// Restricted reports whether some callers may not call a tool of the upstream.
func (u *Upstream) Restricted() bool { return u.anyTool((*Tool).restricted) }

// Hides reports whether a tool of the upstream is hidden from some callers.
func (u *Upstream) Hides() bool { return u.anyTool((*Tool).hides) }

// NamesPrincipals reports whether a tool of the upstream is for some principals only.
func (u *Upstream) NamesPrincipals() bool {
	return u.anyTool(func(t *Tool) bool { return len(t.Principals) > 0 })
}

// anyTool reports whether any policy of the upstream is such a one.
func (u *Upstream) anyTool(is func(*Tool) bool) bool {
	return is(&u.Defaults) || slices.ContainsFunc(u.Tools, func(r Rule) bool { return is(&r.Tool) })
}

// defaultPath is where an upstream without a path is served.
func defaultPath(name string) string { return "/" + name + "/mcp" }

// seed gives an entry of upstreams its defaults before the file's values. The path follows from the
// name and is filled in once that is known.
func (u *Upstream) seed(any) {
	*u = *NewUpstream("", "")
	u.Path = ""
}

// seed gives an entry of tools the policy that it falls back to.
func (r *Rule) seed(parent any) {
	if u, ok := parent.(*Upstream); ok {
		r.Tool = u.Defaults
	}
}

// SameServer reports whether two upstreams are reached in the same way: they differ at most in what
// the gateway makes of the server's answers.
func (u *Upstream) SameServer(other *Upstream) bool {
	return reflect.DeepEqual(u.serverOnly(), other.serverOnly())
}

// serverOnly is the upstream without what says who may call, and what becomes of a call.
func (u *Upstream) serverOnly() *Upstream {
	s := *u
	s.Path, s.Auth, s.ForwardHeaders, s.ExposeHeaders, s.ForwardHost, s.Eras = "", nil, nil, nil, "", nil
	s.Concurrency, s.MaxTasksPerOwner, s.Removed = 0, 0, false
	s.ResponseModes, s.WithoutTasks, s.WithoutTasksAfter, s.Defaults, s.Tools = "", "", 0, Tool{}, nil
	return &s
}

// InheritedEnv is the Env of a command that gets the environment of the gateway.
func InheritedEnv() map[string]string { return map[string]string{nameless: inherit} }

// inherit is the word for that.
const inherit = "inherit"

// Environment returns the variables of command, as NAME=value. own are those of the gateway.
func (u *Upstream) Environment(own []string) []string {
	if u.Env[nameless] == inherit {
		return own
	}
	env := make([]string, 0, len(u.Env))
	for _, name := range slices.Sorted(maps.Keys(u.Env)) {
		env = append(env, name+"="+u.Env[name])
	}
	return env
}
