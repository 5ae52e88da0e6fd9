package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/taskclient"
	"taskgate/internal/work"
)

// request prepares the bytes of one HTTP request of a modern client. name is that of the tool
// or task, "" for a method without one.
func request(host, method, name, params string, tasks bool) []byte {
	capabilities := "{}"
	if tasks {
		capabilities = `{"extensions":{"` + mcp.ExtensionTasks + `":{}}}`
	}
	token := ""
	if name == toolEvents {
		token = `"` + mcp.MetaProgressToken + `":"p",`
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"%s","params":{%s,"_meta":{%s"%s":"%s","%s":%s,"%s":{"name":"bench","version":"1"}}}}`,
		method, params, token, mcp.MetaProtocolVersion, mcp.Version20260728, mcp.MetaClientCapabilities, capabilities, mcp.MetaClientInfo)
	if name != "" {
		name = mcp.HeaderName + ": " + name + "\r\n"
	}
	return fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nAccept: %s\r\n%s: %s\r\n%s: %s\r\n%sContent-Length: %d\r\n\r\n%s",
		host, mcp.TypeJSON, mcp.TypeAccept, mcp.HeaderProtocolVersion, mcp.Version20260728,
		mcp.HeaderMethod, method, name, len(body), body)
}

// Markers that the right answers contain.
const (
	answered = `"text":"` + answerText
	handled  = `"resultType":"task"`
)

// The parties that are measured beside each other: the gateway, the bare proxy, and one with a pool of buffers.
const (
	gateway = iota
	bare
	pooled
	parties
)

// row is one thing that is measured at each party.
type row struct {
	name  string
	loads [parties]load
	conns []int
	rest  time.Duration // the pause after it, for work that goes on behind the answers
}

// Connections of the calls. More of them are as fast for large results, and take the memory of
// all parties.
var (
	fewConns  = []int{1, 8}
	manyConns = []int{1, 16, 64}
)

// call is the load of a tool.
func call(addr, tool string, tasks bool, want string) load {
	params := `"name":"` + tool + `","arguments":{}`
	return load{addr: addr, request: request(addr, mcp.MethodToolsCall, tool, params, tasks), want: want}
}

// rows are the calls in the order of the table. Where the proxy has no such thing, it makes the
// plain call.
func (st *stage) rows(ctx context.Context) ([]row, error) {
	task, err := st.finishedTask(ctx)
	if err != nil {
		return nil, fmt.Errorf("make a task to read: %w", err)
	}
	at := [parties]load{
		gateway: {addr: st.gateway, process: st.gatewayProcess}, bare: {addr: st.proxy, process: st.proxyProcess},
		pooled: {addr: st.pooled, process: st.pooledProcess},
	}
	alike := func(tool string) (all [parties]load) {
		for i, l := range at {
			all[i] = call(l.addr, tool, false, answered)
			all[i].process = l.process
		}
		return all
	}
	unlike := func(l load) [parties]load {
		all := alike("plain")
		l.process = st.gatewayProcess
		all[gateway] = l
		return all
	}
	rows := []row{
		{name: "plain call", conns: manyConns, loads: alike("plain")},
		{name: "plain call, by an event", conns: manyConns, loads: alike(toolEvent)},
		{name: "call with five events", conns: manyConns, loads: alike(toolEvents)},
		{name: "large result, 1 MiB", conns: fewConns, loads: alike(toolLarge)},
		{name: "large result, 1 MiB in chunks", conns: fewConns, loads: alike(toolLargeChunks)},
		{name: "large result, 1 MiB by an event", conns: fewConns, loads: alike(toolLargeEvent)},
		{name: "made a task", conns: manyConns, loads: unlike(call(st.gateway, "always", true, handled)), rest: 300 * time.Millisecond},
		{name: "tasks/get", conns: manyConns, loads: unlike(load{addr: st.gateway, request: getTask(st.gateway, task), want: answered})},
	}
	return rows, nil
}

func getTask(addr, id string) []byte {
	return request(addr, mcp.MethodTasksGet, id, `"taskId":"`+id+`"`, true)
}

// finishedTask makes a task and waits for its end.
func (st *stage) finishedTask(ctx context.Context) (string, error) {
	client := &taskclient.Client{URL: "http://" + st.gateway + "/mcp", Tasks: true}
	_, task, err := client.CallTool(ctx, "keep", map[string]any{})
	if err != nil {
		return "", err
	}
	if task == nil {
		return "", errors.New("the call did not become a task")
	}
	_, err = client.Wait(ctx, task.ID, nil)
	return task.ID, err
}

// cell is one row at one number of connections.
type cell struct {
	name  string
	conns int
}

// found are the samples of a cell, one for each round.
type found [parties][]sample

// measureCalls measures the rows that are wanted. Gateway and proxy take turns, so that
// whatever else the machine does falls on both, and each round begins with another row.
func measureCalls(ctx context.Context, s settings) (string, error) {
	st, err := newStage(ctx, s, "modern")
	if err != nil {
		return "", err
	}
	defer st.close()
	rows, err := st.rows(ctx)
	if err != nil {
		return "", st.explain(err)
	}
	rows = slices.DeleteFunc(rows, func(r row) bool { return !s.wants(r.name) })
	cells := map[cell]*found{}
	for round := range s.rounds {
		fmt.Fprintf(os.Stderr, "calls, round %d of %d\n", round+1, s.rounds)
		for i := range rows {
			if err := rows[(i+round)%len(rows)].measure(ctx, s.length, cells); err != nil {
				return "", st.explain(err)
			}
		}
	}
	return callsTable(rows, cells), nil
}

// measure adds one sample to each cell of the row.
func (r row) measure(ctx context.Context, length time.Duration, cells map[cell]*found) error {
	for _, conns := range r.conns {
		c := cell{r.name, conns}
		if cells[c] == nil {
			cells[c] = &found{}
		}
		for i, l := range r.loads {
			one, err := l.measure(conns, length)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", [parties]string{"taskgate", "bare proxy", "bare proxy with a pool"}[i], r.name, err)
			}
			cells[c][i] = append(cells[c][i], one)
		}
		if err := work.Pause(ctx, r.rest); err != nil {
			return err
		}
	}
	return nil
}

// callsTable has the medians of the rounds. The ratios are of requests per second: 1.00 is as fast as the bare proxy. The
// processor time is that of the party alone, for each request.
func callsTable(rows []row, cells map[cell]*found) string {
	if len(cells) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n### Calls\n\n| call | connections | requests/s | p50 | p99 | CPU | bare proxy: requests/s | p50 | p99 | CPU | of the bare proxy | of one with a pool |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, r := range rows {
		for _, conns := range r.conns {
			c := cells[cell{r.name, conns}]
			ours, proxy, other := median(c[gateway]), median(c[bare]), median(c[pooled])
			fmt.Fprintf(&b, "| %s | %d | %s | %s | %.2f | %.2f |\n", r.name, conns, ours.withCPU(), proxy.withCPU(), ours.rate/proxy.rate, ours.rate/other.rate)
		}
	}
	return b.String()
}
