package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/programtest"
)

// npxServer is a server that people start with npx.
type npxServer struct {
	script string   // below the packages
	args   []string // of the server
	env    []string // besides PATH and HOME
	call   string   // the parameters of a call that needs no network
	roots  string   // when it asks its client for roots: "ready", "call", or "" for never
}

// npxServers are twelve of them.
func npxServers(t *testing.T) map[string]npxServer {
	t.Helper()
	files, err := filepath.EvalSymlinks(t.TempDir()) // the server compares paths with what they are
	if err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(files, "note.txt")
	if err := os.WriteFile(note, []byte("tea at five"), 0o600); err != nil {
		t.Fatal(err)
	}
	const own, more = "node_modules/@modelcontextprotocol/server-", "servers/node_modules/"
	return map[string]npxServer{
		"everything": {script: own + "everything/dist/index.js", args: []string{"stdio"}, call: `{"name":"echo","arguments":{"message":"hällo"}}`, roots: "ready"},
		"filesystem": {script: own + "filesystem/dist/index.js", args: []string{files}, roots: "ready",
			call: fmt.Sprintf(`{"name":"read_text_file","arguments":{"path":%q}}`, note)},
		"memory": {script: own + "memory/dist/index.js", env: []string{"MEMORY_FILE_PATH=" + filepath.Join(files, "memory.jsonl")}, call: `{"name":"read_graph","arguments":{}}`},
		"sequential thinking": {script: more + "@modelcontextprotocol/server-sequential-thinking/dist/index.js",
			call: `{"name":"sequentialthinking","arguments":{"thought":"tea","thoughtNumber":1,"totalThoughts":1,"nextThoughtNeeded":false}}`},
		"notion":          {script: more + "@notionhq/notion-mcp-server/bin/cli.mjs", env: []string{"NOTION_TOKEN=ntn_none"}, call: `{"name":"none","arguments":{}}`},
		"playwright":      {script: more + "@playwright/mcp/cli.js", call: `{"name":"browser_click","arguments":{}}`, roots: "call"},
		"supabase":        {script: more + "@supabase/mcp-server-supabase/dist/cli.js", args: []string{"--access-token=sbp_" + strings.Repeat("0", 40), "--features=account"}, call: `{"name":"get_project","arguments":{}}`},
		"context7":        {script: more + "@upstash/context7-mcp/dist/index.js", call: `{"name":"resolve-library-id","arguments":{}}`},
		"chrome devtools": {script: more + "chrome-devtools-mcp/build/src/bin/chrome-devtools-mcp.js", args: []string{"--usageStatistics=false"}, call: `{"name":"click","arguments":{}}`, roots: "ready"},
		"figma":           {script: more + "figma-developer-mcp/dist/bin.js", args: []string{"--stdio", "--figma-api-key=none"}, env: []string{"DO_NOT_TRACK=1"}, call: `{"name":"get_figma_data","arguments":{}}`},
		"firecrawl":       {script: more + "firecrawl-mcp/dist/index.js", env: []string{"FIRECRAWL_API_KEY=fc-none"}, call: `{"name":"firecrawl_search","arguments":{}}`},
		"tavily":          {script: more + "tavily-mcp/build/index.js", env: []string{"TAVILY_API_KEY=tvly-none"}, call: `{"name":"none","arguments":{}}`},
	}
}

// npxSaid is what a client has of such a server.
type npxSaid struct {
	tools, answer string
	roots         bool
	first         time.Duration // until the answer to initialize
}

// npxClient is the initialize of a client with roots.
const npxClient = `{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"e2e","version":"1"}}`

// toolsIn is a list of tools as it came, without what each says of tasks: that is the gateway's.
func toolsIn(result json.RawMessage) string {
	tools, _ := jsonrpc.Get(result, "tools")
	var list []string
	for tool := range jsonrpc.Elements(tools) {
		list = append(list, string(jsonrpc.Without(tool, "execution")))
	}
	return strings.Join(list, "\n")
}

// TestPackages: servers that people start with npx list the same tools, to the byte but for their
// taskSupport, through serve and taskgate stdio as they do directly, answer the same, and ask for roots
// where they do so directly.
func TestPackages(t *testing.T) {
	programtest.Longest(t)
	t.Parallel()
	dir := nodeDir(t)
	need(t, exists(filepath.Join(dir, "servers", "installed")), `what "make node" installs with TASKGATE_WHOLE=1`)
	for name, s := range npxServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), promptly}, s.env...)
			command := append([]string{nodeBinary(dir), filepath.Join(dir, s.script)}, s.args...)
			over := func(program string, args ...string) npxSaid {
				cmd := exec.Command(program, args...)
				cmd.Env = env
				return s.overStdio(t, cmd)
			}
			direct := over(command[0], command[1:]...)
			if !strings.Contains(direct.tools, `"inputSchema"`) || direct.answer == "" || direct.roots != (s.roots != "") {
				t.Fatalf("directly: %+v", direct)
			}
			for way, got := range map[string]npxSaid{
				"taskgate stdio": over(filepath.Join(bin, "taskgate"), append([]string{"stdio", "--log-level", "error", "--"}, command...)...),
				"serve":          s.overHTTP(t, command, env),
			} {
				t.Logf("%s: the first answer after %s, directly after %s", way, got.first, direct.first)
				if got.tools != direct.tools {
					t.Errorf("%s: the tools differ:\n%s\n%s", way, direct.tools, got.tools)
				}
				if got.answer != direct.answer {
					t.Errorf("%s: the answer is %s, want %s", way, got.answer, direct.answer)
				}
				if got.roots != direct.roots {
					t.Errorf("%s: asked for roots: %t", way, got.roots)
				}
			}
		})
	}
}

// overStdio has a client over stdio use the server.
func (s npxServer) overStdio(t *testing.T, cmd *exec.Cmd) (said npxSaid) {
	t.Helper()
	c := startWire(t, cmd)
	roots := func() {
		m := c.await("the question for roots", func(m wireMessage) bool { return m.Method == mcp.MethodRootsList })
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, m.ID))
		said.roots = true
	}
	began := time.Now()
	c.result(mcp.MethodInitialize, npxClient)
	said.first = time.Since(began)
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if s.roots == "ready" {
		roots()
	}
	said.tools = toolsIn(c.result(mcp.MethodToolsList, `{}`))
	id := c.ask(mcp.MethodToolsCall, s.call)
	if s.roots == "call" {
		roots()
	}
	said.answer = saidIn(c.answer(id))
	return said
}

// saidIn is what an answer says, whatever its id.
func saidIn(m wireMessage) string {
	if m.Error != nil {
		return fmt.Sprintf("%+v", *m.Error)
	}
	return string(m.Result)
}

// overHTTP has a client of a gateway use the server.
func (s npxServer) overHTTP(t *testing.T, command, env []string) (said npxSaid) {
	t.Helper()
	vars := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		vars[name] = value
	}
	args, _ := json.Marshal(command[1:])
	set, _ := json.Marshal(vars)
	g := startGateway(t, configured(t, fmt.Sprintf("store: embedded\nupstreams: [{name: it, path: /mcp, command: %q, args: %s, env: %s}]\n", command[0], args, set))...)
	c := &session{t: t}
	began := time.Now()
	c.do(g, mcp.MethodInitialize, npxClient)
	said.first = time.Since(began)
	asked := make(chan struct{}, 100)
	c.listen(g, func(m wireMessage) {
		if m.Method == mcp.MethodRootsList {
			c.request(t.Context(), g, http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, m.ID)).Body.Close()
			asked <- struct{}{}
		}
	})
	roots := func() {
		said.roots = true
		awaitSignal(t, "the question for roots", asked)
	}
	c.request(t.Context(), g, http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`).Body.Close()
	if s.roots == "ready" {
		roots()
	}
	said.tools = toolsIn(c.do(g, mcp.MethodToolsList, `{}`))
	_, answer := c.stay(g, g, mcp.MethodToolsCall, s.call, "{}")
	if s.roots == "call" {
		roots()
	}
	said.answer = saidIn(answer)
	return said
}
