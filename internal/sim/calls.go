package sim

import (
	"fmt"
	"math/rand/v2"
)

// kind is a kind of calls.
type kind struct {
	name string
	most int // executions that the policy of the tool allows
	make func(c *client, p plan)
	plan plan
}

// kinds are the kinds of calls.
var kinds = []kind{
	{"task", 3, (*client).runModern, plan{path: "/mcp", tool: "work", ms: 8000, tasks: true}},
	{"task once", 1, (*client).runModern, plan{path: "/mcp", tool: "once", ms: 8000, tasks: true}},
	{"task with messages", 1, (*client).runModern, plan{path: "/mcp", tool: "stream", ms: 8000, notes: 5, tasks: true}},
	{"asked", 1, (*client).runModern, plan{path: "/modern", tool: "ask", ms: 3000, notes: 1, tasks: true}},
	{"asked five times", 1, (*client).runModern, plan{path: "/modern", tool: "ask", ms: 500, notes: 5, tasks: true, prompt: true}},
	{"asked by a session", 1, (*client).runModern, plan{path: "/mcp", tool: "survey", ms: 3000, tasks: true}},
	{"without tasks", 1, (*client).runModern, plan{path: "/mcp", tool: "once", ms: 5000}},
	{"asked without tasks", 1, (*client).runModern, plan{path: "/modern", tool: "ask", ms: 3000, notes: 2, prompt: true}},
	{"blocking", 1, (*client).runBlocking, plan{path: "/mcp", tool: "talk", ms: 12000, notes: 8}},
	{"blocking, resumable", 1, (*client).runBlocking, plan{path: "/mcp", tool: "stream", ms: 12000, notes: 8}},
	{"blocking, asked", 1, (*client).runBlocking, plan{path: "/mcp", tool: "survey", ms: 4000, notes: 2}},
	{"several at once", 1, (*client).runBlocking, plan{path: "/mcp", tool: "talk", ms: 8000, notes: 4, beside: 2}},
	{"several, resumable", 1, (*client).runBlocking, plan{path: "/mcp", tool: "stream", ms: 8000, notes: 4, beside: 2}},
	{"read slowly", 1, (*client).runBlocking, plan{path: "/mcp", tool: "stream", ms: 8000, notes: 8, pad: 30_000, slow: true}},
	{"task of the server", 1, (*client).runModern, plan{path: "/mcp", tool: "own", ms: 12000, tasks: true}},
	{"task of a modern server", 1, (*client).runModern, plan{path: "/modern", tool: "own", ms: 12000, tasks: true}},
	{"task of the server, of 2025", 1, (*client).runLegacyTask, plan{path: "/mcp", tool: "own", ms: 12000}},
	{"task of 2025", 3, (*client).runLegacyTask, plan{path: "/mcp", tool: "work", ms: 8000}},
	{"task of 2025, once", 1, (*client).runLegacyTask, plan{path: "/mcp", tool: "once", ms: 8000}},
	{"task of 2025 with partial results", 1, (*client).runLegacyTask, plan{path: "/mcp", tool: "stream", ms: 20000, notes: 12, counts: true}},
	{"given up", 20, (*client).runGivingUp, plan{path: "/mcp", tool: "once", ms: 35000}},
}

// jobKinds are the kinds of calls that start jobs of a server. One of them is made beside each jobEach-th call, as the call
// with a number from firstJob on.
var jobKinds = []kind{
	{"job", 1, (*client).runModern, plan{path: "/mcp", tool: "start_once", ms: 40000, tasks: true}},
	{"job that may start again", 3, (*client).runModern, plan{path: "/mcp", tool: "start_again", ms: 40000, tasks: true}},
	{"job of a modern server", 1, (*client).runModern, plan{path: "/modern", tool: "start_once", ms: 40000, tasks: true}},
	{"job without tasks", 1, (*client).runModern, plan{path: "/modern", tool: "start_once", ms: 10000}},
	{"job that blocks", 1, (*client).runBlocking, plan{path: "/mcp", tool: "start_once", ms: 12000}},
	{"job of 2025", 3, (*client).runLegacyTask, plan{path: "/mcp", tool: "start_again", ms: 40000}},
	{"job of 2025, once", 1, (*client).runLegacyTask, plan{path: "/mcp", tool: "start_once", ms: 40000}},
}

const (
	jobEach  = 3
	firstJob = 90_000
)

// makeCall makes the call with a number, as a client of one of some kinds.
func (w *World) makeCall(i int, of []kind, r *rand.Rand) {
	kind := of[r.IntN(len(of))]
	owner := []string{"ann", "bob"}[r.IntN(2)]
	p := kind.plan
	p.ms = r.IntN(p.ms)
	p.cancels = r.IntN(6) == 0
	if !p.tasks && kind.name == "without tasks" && r.IntN(4) == 0 {
		p.patience = 300_000_000 // 300 ms
	}
	call := w.Judge.Begin(fmt.Sprintf("k%dx", i), kind.name, owner, kind.most)
	c := w.newClient(call, r)
	defer c.http.CloseIdleConnections()
	kind.make(c, p)
}
