package operator

import (
	"encoding/json"
	"time"
)

// Tasks is a page of tasks.
type Tasks struct {
	// Tasks are those of the page that the filters let through; there may be none though there are more pages.
	Tasks []Task `json:"tasks"`
	// Next is the cursor of the next page. It is absent after the last one.
	Next string `json:"next,omitempty"`
}

// Task is what a list shows of a task.
type Task struct {
	ID       string `json:"id"`
	Upstream string `json:"upstream"`
	// Tool is the tool that is called, or the method where it is no tools/call.
	Tool string `json:"tool"`
	// Status is queued, working or input_required, and after its end completed, tool_error, failed, cancelled, or unknown
	// where the server may have done the work. A call that is queued waits for its turn at the server.
	Status string `json:"status"`
	// Outcome is the status after the end. It is absent before.
	Outcome string `json:"outcome,omitempty"`
	// Message is the newest status message: what the server reported, or why the task failed. Without admin_content
	// it is absent for tasks whose outcome is failed or tool_error.
	Message string `json:"message,omitempty"`
	// Principal is whose task it is. It is absent where nobody has to sign in.
	Principal string `json:"principal,omitempty"`
	// Replica runs the task, or was the last one that did.
	Replica string `json:"replica,omitempty"`
	// Hidden says that it is a stored call which is no task: its client waits for it, or gave it up.
	Hidden bool `json:"hidden,omitempty"`
	// KeptUntil is until when it is kept although its client gave up, if nobody picks it up. It is absent for any other.
	KeptUntil *time.Time `json:"kept_until,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	// BegunAt is when its call was sent to the server, which may be before it became a task. Durations count from then.
	BegunAt   time.Time `json:"begun_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// ExpiresAt is until when it can be read; absent before its end.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// Questions is how many questions wait for an answer of the client.
	Questions int `json:"questions,omitempty"`
	// ResultSize is the length of the result in bytes.
	ResultSize int64 `json:"result_size,omitempty"`
}

// Totals are how many tasks have each status.
type Totals struct {
	// Counts are the numbers by status.
	Counts map[string]int `json:"counts"`
	// More says that only the newest tasks that have ended were counted.
	More bool `json:"more,omitempty"`
}

// Opened is the answer to a console that its link has opened.
type Opened struct {
	// Key is the key of the console, good as long as the process lives. It is absent if the request has another key
	// than that of the link.
	Key string `json:"key,omitempty"`
}

// TaskDetail is one task with its events.
type TaskDetail struct {
	Task
	// Events are what happened to it, oldest first.
	Events []Event `json:"events"`
	// PickedUp is who waits for it, or has its result, in place of a client that gave up. It is absent for any other.
	PickedUp *PickedUp `json:"picked_up,omitempty"`
	// TraceID is that of the task's trace, and TraceURL where that is shown (trace_url).
	TraceID  string `json:"trace_id,omitempty"`
	TraceURL string `json:"trace_url,omitempty"`
	// RerunOf is the task whose call this one runs again, and RerunAs the one that runs this one's.
	RerunOf string `json:"rerun_of,omitempty"`
	RerunAs string `json:"rerun_as,omitempty"`
	// Rerunnable says whether its call can be run again now.
	Rerunnable bool `json:"rerunnable,omitempty"`
	// ContentShown says whether admin_content lets arguments, results, questions and answers be shown.
	ContentShown bool `json:"content_shown"`
	// Arguments are those of the call, which are kept until its end, and longer if its outcome is unknown. They are absent
	// where they had no room in max_kept_bytes.
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Result is what the server answered, and Error its error, or that of the gateway.
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
	// TooLarge says that the result is longer than this interface shows.
	TooLarge bool `json:"too_large,omitempty"`
	// Asked are the questions of the server, in their order.
	Asked []Asked `json:"asked,omitempty"`
}

// PickedUp is the client that has picked a task up by making the same call again: one of the same principal.
type PickedUp struct {
	At time.Time `json:"at"`
	// Client is what it calls itself, with its version; absent if it does not.
	Client    string `json:"client,omitempty"`
	Principal string `json:"principal,omitempty"`
}

// Event is one thing that happened to a task.
type Event struct {
	At time.Time `json:"at"`
	// Kind is rerun, made, queued, sent, asked, answered, withdrawn, adopted, resumed, retried, cancelled, left, given_up,
	// picked_up or ended.
	Kind string `json:"kind"`
	// Detail says more: the replica, the method of a question, the client that has picked it up, the outcome.
	Detail string `json:"detail,omitempty"`
}

// Asked is a question of a task.
type Asked struct {
	Key string `json:"key"`
	// Method is what is asked for: elicitation/create, sampling/createMessage or roots/list; absent once it is answered.
	Method string `json:"method,omitempty"`
	// State is open, answered or withdrawn.
	State string `json:"state"`
	// Params are what is asked, and Answer what the client said; with admin_content only, and as long as they are kept.
	Params json.RawMessage `json:"params,omitempty"`
	Answer json.RawMessage `json:"answer,omitempty"`
}

// Questions are the open questions, the longest waiting first.
type Questions struct {
	Questions []Question `json:"questions"`
	// More says that there are more than are listed.
	More bool `json:"more,omitempty"`
}

// Question is an open question: a server waits for somebody's client.
type Question struct {
	Task      string `json:"task"`
	Upstream  string `json:"upstream"`
	Tool      string `json:"tool"`
	Principal string `json:"principal,omitempty"`
	Key       string `json:"key"`
	Method    string `json:"method"`
	// Since is when the task last changed: the question has been open for at least as long.
	Since time.Time `json:"since"`
	// Params are what is asked; with admin_content only.
	Params json.RawMessage `json:"params,omitempty"`
}

// Replicas are those of the deployment, the oldest first.
type Replicas struct {
	Replicas []Replica `json:"replicas"`
}

// Replica is one process of the gateway.
type Replica struct {
	Name string `json:"name"`
	// Alive says whether its heartbeat counts. One that is gone is listed for an hour.
	Alive bool `json:"alive"`
	// SeenAt is its last heartbeat.
	SeenAt time.Time `json:"seen_at"`
	// Host, Address, Version, Config and Since are what it says of itself: absent where it could not yet.
	Host    string `json:"host,omitempty"`
	Address string `json:"address,omitempty"`
	Version string `json:"version,omitempty"`
	// Config names the configuration in use, as the log does.
	Config string     `json:"config,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	// Draining says that it takes no new calls; one that is gone so was stopped, and any other has died.
	Draining bool `json:"draining,omitempty"`
	// Tasks are how many it runs, as far as the store knows.
	Tasks int `json:"tasks"`
	// Sessions are those of the 2025 versions with something going on there, and Streams those that clients listen to.
	Sessions int `json:"sessions"`
	Streams  int `json:"streams"`
}

// Clients are who sends requests and who holds what, those with most requests in the last minute first.
type Clients struct {
	Clients []Client `json:"clients"`
	// Others are the requests in the last minute of those that are not told apart: each replica tells of the 20 that send
	// most to an upstream in a minute.
	Others int `json:"others,omitempty"`
}

// Client is one principal or, where it has not signed in, one address.
type Client struct {
	// Principal is absent for who has not signed in, and Address for who has.
	Principal string `json:"principal,omitempty"`
	Address   string `json:"address,omitempty"`
	// Names are those of the clients at the address, as they call themselves.
	Names []string `json:"names,omitempty"`
	// LastMinute and LastHour are how many requests it has sent, and Methods those of the hour by method.
	LastMinute int            `json:"last_minute"`
	LastHour   int            `json:"last_hour"`
	Methods    map[string]int `json:"methods,omitempty"`
	Holdings
}

// Holdings are what a client has on all replicas together; what no replica counts among its largest is left out.
type Holdings struct {
	// Sessions are those of the 2025 versions with something going on; those without an owner count together.
	Sessions int `json:"sessions"`
	Streams  int `json:"streams"`
	// Calls wait for a server or a task.
	Calls int `json:"calls"`
	Tasks int `json:"tasks"`
}

// Store is where tasks and sessions are kept, as the replica that answers sees it. What is unknown is absent.
type Store struct {
	// Kind is memory, file or redis.
	Kind string `json:"kind"`
	// Address is that of Redis, without credentials.
	Address string `json:"address,omitempty"`
	// Error says why it does not answer.
	Error string `json:"error,omitempty"`
	// LatencyMs is how long it took to answer.
	LatencyMs float64 `json:"latency_ms"`
	// Masters are the processes of Redis that take writes, with the memory of all together; a MaxBytes of 0 is no limit.
	Masters   int   `json:"masters,omitempty"`
	UsedBytes int64 `json:"used_bytes,omitempty"`
	MaxBytes  int64 `json:"max_bytes,omitempty"`
	// Replicas are connected to the master that has fewest, and WaitReplicas have to confirm a write.
	Replicas     int `json:"replicas,omitempty"`
	WaitReplicas int `json:"wait_replicas,omitempty"`
	// Folder is where tasks are kept, and FolderBytes its size.
	Folder      string `json:"folder,omitempty"`
	FolderBytes int64  `json:"folder_bytes,omitempty"`
}

// Upstreams are the servers, by name.
type Upstreams struct {
	Upstreams []Upstream `json:"upstreams"`
}

// Upstream is one server as all replicas that are alive see it.
type Upstream struct {
	Name string `json:"name"`
	// Transport is http, sse or stdio, and Era modern or legacy; absent before the server has been reached.
	Transport string `json:"transport,omitempty"`
	Era       string `json:"era,omitempty"`
	// Reachable says whether all replicas reach it; Replicas has each.
	Reachable bool `json:"reachable"`
	// Removed says that it is out of the configuration, and takes no calls.
	Removed bool `json:"removed,omitempty"`
	// Calls are in flight, Queued wait for their turn, and Tasks run, on all replicas together.
	Calls  int `json:"calls"`
	Queued int `json:"queued"`
	Tasks  int `json:"tasks"`
	// Paused is what operators have paused of it: its calls are refused until they resume it.
	Paused []Pause `json:"paused,omitempty"`
	// Policies say which tools become tasks, and when.
	Policies []Policy `json:"policies"`
	// Tools are those whose tasks run now.
	Tools []Tool `json:"tools"`
	// Replicas is what each says of it.
	Replicas []Reach `json:"replicas"`
}

// Pause says that an operator has paused the new calls of an upstream, or of a tool of it.
type Pause struct {
	Upstream string `json:"upstream"`
	// Tool is absent if all tools of the upstream are paused.
	Tool string `json:"tool,omitempty"`
	// Operator has paused it, as the audit log names it.
	Operator string    `json:"operator,omitempty"`
	Since    time.Time `json:"since"`
}

// Policy is the policy of some tools.
type Policy struct {
	// Tools is the name or the pattern; "*" for all others.
	Tools string `json:"tools"`
	// Tasks is auto, required or never.
	Tasks string `json:"tasks"`
	// Grace, TTL and Timeout are durations as in the configuration.
	Grace   string `json:"grace,omitempty"`
	TTL     string `json:"ttl,omitempty"`
	Timeout string `json:"timeout,omitempty"`
	// Concurrency is how many calls each replica has in flight; 0 for any number.
	Concurrency int `json:"concurrency,omitempty"`
	// Recover is what is done with a call that may have been lost: fail or retry.
	Recover string `json:"recover,omitempty"`
	// Rerun says whether the call of a failed task can be run again.
	Rerun bool `json:"rerun,omitempty"`
}

// Tool is what runs of one tool now.
type Tool struct {
	Tool string `json:"tool"`
	// Running are at the server, InputRequired wait for their client, and Queued for their turn.
	Running       int `json:"running"`
	InputRequired int `json:"input_required"`
	Queued        int `json:"queued"`
	// Oldest is when the oldest of them was made.
	Oldest *time.Time `json:"oldest,omitempty"`
}

// Reach is how one replica reaches an upstream.
type Reach struct {
	Replica   string `json:"replica"`
	Reachable bool   `json:"reachable"`
	// Error says why it does not.
	Error  string `json:"error,omitempty"`
	Calls  int    `json:"calls"`
	Queued int    `json:"queued"`
	Tasks  int    `json:"tasks"`
}

// Stats are the counts of the last hour.
type Stats struct {
	// Minutes are 60, the oldest first; the last one is not over.
	Minutes []Minute `json:"minutes"`
	// Bounds are the upper bounds of the durations' buckets in seconds; one more bucket is for all that is longer.
	Bounds []float64 `json:"bounds"`
}

// Minute is what happened in one minute, on all replicas.
type Minute struct {
	// At is when it began.
	At time.Time `json:"at"`
	Counts
}

// Counts are counts of tool calls and tasks.
type Counts struct {
	// Calls are the tool calls that were answered, by what the client got: reply, task, input_required, or error for one
	// of the gateway's own.
	Calls map[string]int `json:"calls,omitempty"`
	// Made is how many tasks were made.
	Made int `json:"made,omitempty"`
	// Ended are the tasks that ended, by how: completed, tool_error, failed, cancelled, expired or unknown.
	Ended map[string]int `json:"ended,omitempty"`
	// Durations are how many calls with a reply and tasks that ended took as long as each bucket says; absent where
	// there were none.
	Durations []int `json:"durations,omitempty"`
}

// Error is the body of each answer that is not a success.
type Error struct {
	Error string `json:"error"`
}

// Access says who asks, and what is shown.
type Access struct {
	// Principal is who asks, as the audit log names it.
	Principal string `json:"principal"`
	// Content says whether admin_content shows arguments, results, questions and answers.
	Content bool `json:"content"`
	// Version is that of the replica which answers, and Replica its name.
	Version string `json:"version"`
	Replica string `json:"replica"`
}
