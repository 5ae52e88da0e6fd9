package operator

import (
	"net/http"
	"slices"

	"taskgate/shim"
)

// Base begins the paths of the interface.
const Base = "/api/v1"

// route is one path of the interface. openapi.json is made of all of them, and of the types.
type route struct {
	method, path string // path is below Base
	says         string
	params       []param                                        // of the query
	answer       any                                            // of this type, as JSON; nil for a stream of events
	fails        []int                                          // its own error statuses, besides those of a refused request
	read         func(h *Handler, r *http.Request) (any, error) // returns the answer; nil for a stream of events
}

// param is a parameter of a query.
type param struct {
	name, says string
	repeats    bool
	enum       []string
}

// Statuses are those of a task, in the order in which they follow each other.
var Statuses = spellStates(slices.Concat(shim.OpenStates, shim.EndedStates))

func spellStates(states []shim.State) (words []string) {
	for _, s := range states {
		words = append(words, string(s))
	}
	return words
}

// taskParams are the parameters of a list of tasks.
var taskParams = []param{
	{name: "upstream", says: "the name of an upstream"},
	{name: "tool", says: "the name of a tool"},
	{name: "status", says: "a status; given several times, any of them", repeats: true, enum: Statuses},
	{name: "principal", says: "whose tasks they are; empty for those of nobody in particular"},
	{name: "replica", says: "the replica that runs them; those that have ended are left out"},
	{name: "id", says: "how their ids begin"},
	{name: "older_than", says: "a duration such as 90s or 2h: they were made before that"},
	{name: "newer_than", says: "a duration: they were made since then"},
	{name: "ended_within", says: "a duration: they ended since then"},
	{name: "order", says: "by creation; newest unless given", enum: []string{"newest", "oldest"}},
	{name: "limit", says: "how many at most, 1 to 500; 100 unless given"},
	{name: "cursor", says: "next of the page before, with the same filters and order"},
}

// pausedTool are the parameters of a pause.
var pausedTool = []param{{name: "tool", says: "the name of a tool; all tools of the upstream unless given"}}

var routes = []route{
	{
		method: "GET", path: "/access", says: "who asks, and what is shown", answer: Access{}, read: (*Handler).readAccess,
	}, {
		method: "POST", path: "/open", says: "a key for the console in place of that in the log's link, which opens it once; none for any other key", answer: Opened{}, read: (*Handler).openConsole,
	}, {
		method: "GET", path: "/tasks", says: "tasks, page by page", answer: Tasks{}, fails: []int{400}, read: (*Handler).readTasks,
		params: taskParams,
	}, {
		method: "GET", path: "/totals", says: "how many tasks have each status: all that run, and the newest 5000 of the others", answer: Totals{}, fails: []int{400}, read: (*Handler).readTotals,
		params: slices.DeleteFunc(slices.Clone(taskParams), func(p param) bool {
			return slices.Contains([]string{"status", "order", "limit", "cursor"}, p.name)
		}),
	}, {
		method: "GET", path: "/tasks/{id}", says: "one task with its events", answer: TaskDetail{}, fails: []int{404}, read: (*Handler).readTask,
	}, {
		method: "POST", path: "/tasks/{id}/cancel", says: "cancels a task; 409 where it has ended already", answer: Task{}, fails: []int{404, 409}, read: (*Handler).cancelTask,
	}, {
		method: "POST", path: "/tasks/{id}/rerun", says: "runs the call of a failed task again, once, and answers with the new task; 409 says why not", answer: Task{}, fails: []int{404, 409}, read: (*Handler).rerunTask,
	}, {
		method: "GET", path: "/questions", says: "the open questions", answer: Questions{}, read: (*Handler).readQuestions,
	}, {
		method: "GET", path: "/replicas", says: "the replicas of the deployment", answer: Replicas{}, read: (*Handler).readReplicas,
	}, {
		method: "GET", path: "/upstreams", says: "the servers, and what runs there now", answer: Upstreams{}, read: (*Handler).readUpstreams,
	}, {
		method: "POST", path: "/upstreams/{upstream}/pause", says: "has new calls of an upstream's tools, or of one tool, refused as busy until they are resumed; what runs goes on; 409 says why not",
		answer: Pause{}, fails: []int{409}, read: (*Handler).pauseCalls, params: pausedTool,
	}, {
		method: "POST", path: "/upstreams/{upstream}/resume", says: "ends a pause, and answers with it; 409 where there is none", answer: Pause{}, fails: []int{409}, read: (*Handler).resumeCalls,
		params: pausedTool,
	}, {
		method: "GET", path: "/store", says: "where tasks are kept, and how it answers", answer: Store{}, read: (*Handler).readStore,
	}, {
		method: "GET", path: "/clients", says: "who sends how many requests, and who holds what", answer: Clients{}, read: (*Handler).readClients,
	}, {
		method: "GET", path: "/stats", says: "counts of the last hour by minute", answer: Stats{}, read: (*Handler).readStats,
		params: []param{{name: "upstream", says: "of one upstream alone"}},
	}, {
		method: "GET", path: "/changes", says: "a stream of server-sent events: one named change, at most twice a second, when something has changed that the other paths show; read them again then, and every 10 s",
	},
}
