package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskgate/internal/mcp"
	"taskgate/shim/shimtest/fake"
)

// exportTools are the tools of a server with jobs, as it lists them.
const exportTools = `{"resultType":"complete","tools":[` +
	`{"name":"start_export","inputSchema":{"type":"object","properties":{"region":{"type":"string"}}}},` +
	`{"name":"export_status","inputSchema":{"type":"object","properties":{"job_id":{},"verbose":{}},"required":["job_id"]}},` +
	`{"name":"export_result","inputSchema":{"type":"object","properties":{"job_id":{}},"required":["job_id"],"additionalProperties":false}},` +
	`{"name":"cancel_export","inputSchema":{"type":"object"},"annotations":{"idempotentHint":true}}]}`

// exportJob is the job of start_export. more are further keys.
func exportJob(status, statusArguments, more string) string {
	return "job: {id: $.id, done: [done], status: {tool: " + status + ", value: $.state, arguments: {" + statusArguments + "}}" + more + "}"
}

// TestCheckConnect: check --connect says which tools and arguments the running server does not have, in both eras.
func TestCheckConnect(t *testing.T) {
	const at = "upstreams[0].tools[0]."
	for _, c := range []struct {
		name, tools string
		says        []string // the lines, without the file; the first one of a good file is "ok"
	}{
		{"right", "{match: start_export, " + exportJob("export_status", `job_id: "{id}"`, `, result: {tool: export_result, arguments: {job_id: "{id}"}}, cancel: {tool: cancel_export, arguments: {any: "{id}"}}`) + "}",
			[]string{"ok (1 upstream)"}},
		{"no such tools", "{match: start_export, " + exportJob("export_statis", `job_id: "{id}"`, `, result: {tool: fetch, arguments: {job_id: "{id}"}}`) + "}",
			[]string{at + `job.status.tool: the server has no tool export_statis (did you mean "export_status"?)`, at + "job.result.tool: the server has no tool fetch"}},
		{"other arguments", "{match: start_export, " + exportJob("export_status", `job: "{id}", verbose: "{arguments.where}"`, `, result: {tool: export_result, arguments: {job_id: "{id}", more: 1}}`) + "}",
			[]string{
				at + "job.status.arguments: export_status needs the argument job_id", at + "job.status.arguments: export_status has no argument job",
				at + "job.status.arguments: start_export has no argument where, so {arguments.where} would be left out", at + "job.result.arguments: export_result has no argument more",
			}},
		{"a wrong name", "{match: start_exprt}", []string{at + `match: the server has no tool start_exprt (did you mean "start_export"?)`}},
		{"nothing matches", "{match: 'delete_*'}, {match: {read_only: true}}, {match: {idempotent: true}}",
			[]string{"warning: " + at + "match: no tool of the server matches", "warning: upstreams[0].tools[1].match: no tool of the server matches", "ok (1 upstream)"}},
	} {
		for name, mode := range map[string]fake.Mode{"legacy": fake.Stateful, "modern": fake.Modern} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				s := fake.New(t, mode)
				s.On(mcp.MethodToolsList, fake.Result(exportTools))
				code, got := checkConnected(t, "{name: a, url: '"+s.URL+"', tools: ["+c.tools+"]}")
				if failed := !strings.HasPrefix(c.says[len(c.says)-1], "ok"); (code == exitFailure) != failed {
					t.Errorf("the exit code is %d", code)
				}
				for _, want := range c.says {
					if !strings.Contains(got, want) {
						t.Errorf("check says\n%swithout %q", got, want)
					}
				}
				if lines := strings.Count(got, "\n"); lines != len(c.says) {
					t.Errorf("check says %d lines, want %d:\n%s", lines, len(c.says), got)
				}
			})
		}
	}
}

// TestCheckConnectFails: a server that cannot be asked is a mistake, and so is one that does not list its tools.
func TestCheckConnectFails(t *testing.T) {
	silent := fake.New(t, fake.Modern)
	silent.On(mcp.MethodToolsList, fake.RPCError(200, mcp.CodeInternal, "no list", ""))
	for upstream, want := range map[string]string{
		"{name: a, url: 'http://127.0.0.1:1/mcp'}":         "upstreams[0]: ",
		"{name: a, url: '" + silent.URL + "'}":             "the server does not list its tools",
		"{name: a, command: /nowhere/at/all, env: {A: b}}": "upstreams[0]: ",
	} {
		if code, got := checkConnected(t, upstream); code != exitFailure || !strings.Contains(got, want) {
			t.Errorf("%s: code %d, %s", upstream, code, got)
		}
	}
}

// checkConnected is the exit code and the output of check --connect for one upstream.
func checkConnected(t *testing.T, upstream string) (int, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.yaml")
	must(t, os.WriteFile(file, []byte("store: embedded\nupstreams: ["+upstream+"]\n"), 0o600))
	var out bytes.Buffer
	code := run(t.Context(), []string{"check", "--connect", file}, &out, &out)
	return code, out.String()
}
