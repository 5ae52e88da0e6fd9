package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/balancer"
	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
)

// tableClient is a client of TestTable: a row in each table.
type tableClient struct {
	name   string
	peer   string // what table.mjs calls it
	tasks  bool   // it takes tasks
	handle bool   // behind without_tasks: handle
	what   string
}

func tableClients() []tableClient {
	const ts1, ts2 = "TypeScript SDK 1.32.2", "TypeScript SDK 2.4.0"
	return []tableClient{
		{name: "legacy without tasks", peer: "ts1", what: ts1},
		{name: "legacy with tasks", peer: "ts1tasks", tasks: true, what: ts1 + ", its task client"},
		{name: "modern without tasks", peer: "ts2", what: ts2},
		{name: "modern with the extension", peer: "ext", tasks: true, what: ts2 + " with ext-tasks 0.2.2"},
		{name: "legacy without tasks, `handle`", peer: "ts1", handle: true, what: ts1},
		{name: "modern without tasks, `handle`", peer: "ts2", handle: true, what: ts2},
	}
}

// tableStep is an operation, and the call that shows it.
type tableStep struct {
	Op   string         `json:"op"`
	Tool string         `json:"tool,omitempty"`
	Args map[string]any `json:"args"`
}

// tableSteps are the operations. The list comes last, since a server may list more tools once
// it knows its client.
var tableSteps = []tableStep{
	{"call", "echo", map[string]any{"text": "hallo"}},
	{"progress", "steps", map[string]any{}},
	{"slow", "slow", map[string]any{}},
	{"cancel", "hang", map[string]any{}},
	{"question", "ask", map[string]any{}},
	{"fail", "fail", map[string]any{}},
	{"broken", "broken", map[string]any{}},
	{"large", "large", map[string]any{}},
	{"list", "", nil},
}

// everythingSteps are those that the reference server has tools for.
var everythingSteps = []tableStep{
	{"call", "echo", map[string]any{"message": "hallo"}},
	{"progress", longRunning, map[string]any{"duration": 3, "steps": 3}},
	{"slow", "simulate-research-query", map[string]any{"topic": "tea", "ambiguous": false}},
	{"question", "trigger-elicitation-request", map[string]any{}},
	{"fail", "echo", map[string]any{}},
	{"list", "", nil},
}

// tableServer is a server of TestTable.
type tableServer struct {
	id    string
	kind  string
	peer  string
	over  []string
	steps []tableStep
	at    func(t *testing.T, over, marks string) target
}

// Transports of servers. One that only legacy servers speak is left out for the others.
var (
	legacyOver = []string{"HTTP", "HTTP+SSE", "stdio"}
	modernOver = []string{"HTTP", "stdio"}
)

func tableServers() []tableServer {
	const goSDK = "Go SDK 1.8.0"
	return []tableServer{
		{"legacy", "legacy without tasks", "TypeScript SDK 1.32.2", legacyOver, tableSteps, tsTarget("ts1server.mjs")},
		{"legacy-tasks", "legacy with tasks", "TypeScript SDK 1.32.2", legacyOver, tableSteps, tsTarget("ts1server.mjs", "TASKS")},
		{"everything", "legacy with tasks", "server-everything 2026.8.31", legacyOver, everythingSteps, everythingTarget},
		{"modern", "modern without tasks", "TypeScript SDK 2.4.0", modernOver, tableSteps, tsTarget("ts2server.mjs")},
		{"modern-tasks", "modern with tasks", goSDK + " with `internal/e2e/nativetasks`", modernOver, tableSteps, goTarget("modern-tasks")},
		{"both", "both eras", goSDK, modernOver, tableSteps, goTarget("both")},
		{"mcp-go", "both eras, tasks in the legacy one", "mcp-go 1.2.1", modernOver, tableSteps, goTarget("mcp-go")},
	}
}

// tableGot is what a client got for an operation.
type tableGot struct {
	Op    string
	How   string // result, task, told (of a task, in words), or error
	Code  int    // of an error
	Text  string
	Said  int // how many different messages of progress there were
	Asked int
}

// failed reports that the client got no result where it should have.
func (g tableGot) failed() bool {
	return g.How == "error" || g.Op != "fail" && strings.HasPrefix(g.Text, "error: ")
}

// tableCell is one client and one server: what it is, and what to do.
type tableCell struct {
	Name  string      `json:"name"`
	Marks string      `json:"marks"`
	Steps []tableStep `json:"steps"`
	target
}

// tableGots are what a client got in a cell, by operation.
type tableGots map[string]tableGot

// Names of cells. That of one behind the gateway is also the name of its upstream.
func directly(s tableServer, over string) string { return "direct-" + s.name(over) }

func through(s tableServer, over string, handle bool) string {
	if handle {
		return "handle-" + s.name(over)
	}
	return "through-" + s.name(over)
}

func (s tableServer) name(over string) string {
	return s.id + "-" + strings.ToLower(strings.ReplaceAll(over, "+", "-"))
}

// bearerOf is the key of a client. Each is somebody else: what a server asks over stdio names no
// call, and may be put to any call of the same principal.
func bearerOf(peer string) string { return peer + "-0123456789abcdef0123" }

// tableGateways runs two replicas in front of all servers, twice each: the other time for clients
// that are told of tasks in words. Such a call cannot be cancelled once its client was told, so
// there only the slow tool may become a task. It returns the address of a balancer that sends each
// request to the other replica.
func tableGateways(t *testing.T, targets map[string]target, servers []tableServer) string {
	t.Helper()
	var yaml strings.Builder
	fmt.Fprintf(&yaml, "store: %s\nauth: {keys: [", redistest.Start(t).URL())
	for _, c := range tableClients() {
		if !c.handle {
			fmt.Fprintf(&yaml, "%s:%s, ", c.peer, config.HashKey(bearerOf(c.peer)))
		}
	}
	yaml.WriteString("]}\n")
	yaml.WriteString("state_keys: [\"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=\"]\nupstreams:\n")
	for _, s := range servers {
		for _, over := range s.over {
			where, err := json.Marshal(targets[s.id+over]) // YAML has JSON in it
			if err != nil {
				t.Fatal(err)
			}
			where = bytes.Replace(where, []byte(`"sse":`), []byte(`"url":`), 1)
			for _, handle := range []bool{false, true} {
				name := through(s, over, handle)
				policy := `"defaults":{"grace":"300ms","poll_interval":"100ms"}`
				if handle {
					policy = `"without_tasks":"handle","without_tasks_after":"400ms","defaults":{"tasks":"never"},` +
						`"tools":[{"match":"slow","tasks":"auto"},{"match":"simulate-*","tasks":"auto"}]`
				}
				fmt.Fprintf(&yaml, "  - {\"name\":%q,\"path\":%q,%s,\"start_timeout\":\"60s\",%s\n", name, "/"+name, policy, where[1:])
			}
		}
	}
	file := configured(t, yaml.String())
	var replicas []balancer.Replica
	for range 2 {
		admin := freeAddr(t)
		g := startGateway(t, slices.Concat(file, []string{"--admin", admin})...)
		replicas = append(replicas, func() (string, string) { return g.addr, admin })
	}
	b := balancer.New(replicas...)
	go b.Poll(t.Context())
	eventually(t, "both are ready", func() error {
		if !b.Ready(0) || !b.Ready(1) {
			return errors.New("one is not")
		}
		return nil
	})
	front := httptest.NewServer(b)
	t.Cleanup(front.Close)
	return front.Listener.Addr().String()
}

// tableRun has one client make all of its cells.
func tableRun(t *testing.T, peer string, cells []tableCell) map[string]tableGots {
	t.Helper()
	const script = "table.mjs"
	dir := scriptDir(t, script)
	input, err := json.Marshal(cells)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := untilDeadline(t)
	defer cancel()
	cmd := exec.CommandContext(ctx, nodeBinary(nodeDir(t)), filepath.Join(dir, script))
	cmd.Env = append(cmd.Environ(), "PEER="+peer, "BEARER="+bearerOf(peer), "AT_ONCE=4")
	var failure bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &failure
	out, err := cmd.Output()
	var rows []struct {
		Name string
		Got  []tableGot
	}
	if err == nil {
		err = json.Unmarshal(out, &rows)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", peer, err, out, failure.String())
	}
	all := map[string]tableGots{}
	for _, row := range rows {
		all[row.Name] = tableGots{}
		for _, got := range row.Got {
			all[row.Name][got.Op] = got
		}
	}
	return all
}

// TestTable: every client has through the gateway at least what it has directly, with every
// kind of server and over every transport. What it finds is the table in
// docs/compatibility.md, which -update writes.
func TestTable(t *testing.T) {
	programtest.Longest(t)
	t.Parallel()
	nodeDir(t)
	servers, marks := tableServers(), t.TempDir()
	targets := map[string]target{}
	for _, s := range servers {
		for _, over := range s.over {
			targets[s.id+over] = s.at(t, over, marks)
		}
	}
	front := tableGateways(t, targets, servers)
	cells := map[string][]tableCell{}
	for _, c := range tableClients() {
		for _, s := range servers {
			for _, over := range s.over {
				name := through(s, over, c.handle)
				cells[c.peer] = append(cells[c.peer], tableCell{name, marks, s.steps, target{URL: "http://" + front + "/" + name}})
				if !c.handle {
					cells[c.peer] = append(cells[c.peer], tableCell{directly(s, over), marks, s.steps, targets[s.id+over]})
				}
			}
		}
	}
	var mu sync.Mutex
	found := map[string]map[string]tableGots{} // by peer and cell
	t.Run("clients", func(t *testing.T) {
		for peer, its := range cells {
			t.Run(peer, func(t *testing.T) {
				t.Parallel()
				all := tableRun(t, peer, its)
				mu.Lock()
				defer mu.Unlock()
				found[peer] = all
			})
		}
	})
	if t.Failed() {
		return
	}
	tableCompare(t, servers, found)
	tableDocuments(t, servers, found)
}

// tableCompare fails for whatever is worse through the gateway.
func tableCompare(t *testing.T, servers []tableServer, found map[string]map[string]tableGots) {
	t.Helper()
	for _, c := range tableClients() {
		for _, s := range servers {
			for _, over := range s.over {
				direct, behind := found[c.peer][directly(s, over)], found[c.peer][through(s, over, c.handle)]
				for _, step := range s.steps {
					if why := worse(direct[step.Op], behind[step.Op]); why != "" {
						t.Errorf("%s, %s (%s) over %s, %s: %s\ndirectly %+v\nthrough  %+v",
							c.name, s.kind, s.peer, over, step.Op, why, direct[step.Op], behind[step.Op])
					}
				}
			}
		}
	}
}

// worse says in which way a client has less through the gateway than directly; "" if in none.
func worse(direct, behind tableGot) string {
	if direct.How == "" || behind.How == "" {
		return "it was not tried"
	}
	if strings.HasSuffix(direct.Text+" "+behind.Text, "nothing happened") {
		return "it took too long"
	}
	if strings.HasPrefix(direct.Text, "no connection") {
		return ""
	}
	isError := direct.Op == "fail" || direct.Op == "broken"
	switch {
	case direct.failed() && !isError:
		return ""
	case isError && (behind.Code != direct.Code || plainText(behind.Text) != plainText(direct.Text)):
		return "another error"
	case isError:
		return ""
	case behind.failed():
		return "an error"
	case direct.How == "task" && behind.How != "task":
		return "no task"
	}
	switch direct.Op {
	case "list":
		for tool := range strings.FieldsSeq(direct.Text) {
			if !strings.Contains(" "+behind.Text+" ", " "+tool+" ") {
				return "without the tool " + tool
			}
		}
		return ""
	case "progress":
		// A task shows the message that it has when it is looked at.
		want := direct.Said
		if behind.How != "result" {
			want = min(want, 1)
		}
		if behind.Said < want {
			return "less progress"
		}
	case "question":
		if behind.Asked < direct.Asked {
			return "not asked"
		}
	case "cancel":
		if direct.Text == "not seen" {
			return ""
		}
	}
	if behind.Text != direct.Text {
		return "another result"
	}
	return ""
}

// plainText is a message without what the TypeScript SDK writes before it.
func plainText(s string) string {
	for {
		rest, ok := strings.CutPrefix(s, "MCP error ")
		if !ok {
			return s
		}
		_, s, _ = strings.Cut(rest, ": ")
	}
}
