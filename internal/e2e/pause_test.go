package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// pausable is a gateway whose operators have a key.
const pausable = `
store: %s
heartbeat: 1s
admin: %s
admin_auth: {keys: ["ann:%s"]}
audit: %s
upstreams:
  - {name: slow, path: /mcp, url: %s, defaults: {tasks: auto, grace: 300ms}}
`

// pauseWorld is a store, and a server behind all gateways on it.
type pauseWorld struct {
	t                    *testing.T
	store, server, audit string
}

// pauser is a gateway with the address for its operators.
type pauser struct {
	*gateway
	admin string
}

const annsKey = "anns-key-0123456789-abcdef"

func (w *pauseWorld) start() *pauser {
	w.t.Helper()
	admin := freeAddr(w.t)
	return &pauser{startGateway(w.t, configured(w.t, fmt.Sprintf(pausable, w.store, admin, config.HashKey(annsKey), w.audit, w.server))...), admin}
}

// command runs the command line for operators, and returns what it prints.
func (p *pauser) command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "taskgate"), append(args, "--admin", p.admin, "--key", annsKey)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v %s", args, err, out)
	}
	return string(out)
}

// page is what the admin address has at a path.
func (p *pauser) page(t *testing.T, path string) (status int, body string) {
	t.Helper()
	resp, err := http.Get("http://" + p.admin + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// wantPaused wants the error of a call to say that it is paused.
func wantPaused(t *testing.T, what string, err error, text string) {
	t.Helper()
	var rpc *taskclient.Error
	if !errors.As(err, &rpc) || rpc.Code != -32603 || !strings.Contains(rpc.Message, text) || !strings.Contains(string(rpc.Data), `"retryAfterMs":30000`) {
		t.Errorf("%s is answered with %v", what, err)
	}
}

// An operator pauses a tool, and then the server, at one replica: clients of each kind are told so at both, also after a
// restart of one. What runs ends as it would, and the gateway is ready all the while.
func TestPauseOverReplicas(t *testing.T) {
	t.Parallel()
	w := &pauseWorld{t: t, store: redistest.Start(t).URL(), server: startServer(t, "slowserver"), audit: filepath.Join(t.TempDir(), "audit")}
	a, b := w.start(), w.start()
	session := connectAs(t, b.url, "2025-11-25")
	running := callTask(t, a.client(true), "research", research(3))
	if got := a.command(t, "pause", "slow/research"); got != "slow/research is paused\n" {
		t.Error(got)
	}
	const tool, server = `the tool "research" is paused by its operator`, "this server is paused by its operator"
	refused := func(p *pauser) bool {
		_, err := p.client(true).Do(t.Context(), "tools/call", map[string]any{"name": "research", "arguments": research(0)})
		return err != nil
	}
	until(t, "the other replica has heard of it", func() bool { return refused(b) })
	for _, p := range []*pauser{a, b} {
		for _, tasks := range []bool{true, false} {
			_, _, err := p.client(tasks).CallTool(t.Context(), "research", research(0))
			wantPaused(t, fmt.Sprintf("a call with tasks %v", tasks), err, tool)
		}
		callPlain(t, p.client(false), "count_words", map[string]any{"text": "one"})
	}
	if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "research", Arguments: research(0)}); err == nil || !strings.Contains(err.Error(), tool) {
		t.Errorf("a client of 2025: %v", err)
	}
	b.command(t, "pause", "slow")
	until(t, "the first replica has heard of it", func() bool {
		_, _, err := a.client(false).CallTool(t.Context(), "count_words", map[string]any{"text": "one"})
		return err != nil
	})
	waitFor(t, a.client(true), running.ID, "completed")
	if got := a.command(t, "pause"); !strings.Contains(got, "research") || !strings.Contains(got, "all") || strings.Count(got, "ann") != 2 {
		t.Error(got)
	}
	b.Kill()
	again := w.start()
	_, _, err := again.client(true).CallTool(t.Context(), "count_words", map[string]any{"text": "one"}) // its first call
	wantPaused(t, "the first call after a restart", err, server)
	if status, body := again.page(t, "/readyz"); status != http.StatusOK {
		t.Errorf("not ready: %d %s", status, body)
	}
	until(t, "the metric has it", func() bool {
		_, body := again.page(t, "/metrics")
		return strings.Contains(body, `taskgate_upstream_paused{taskgate_upstream="slow"} 1`) && strings.Contains(body, `gen_ai_tool_name="research"`)
	})
	again.command(t, "resume", "slow", "slow/research")
	until(t, "calls go on", func() bool { return !refused(a) && !refused(again) })
	events, err := os.ReadFile(w.audit)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"event":"calls paused by an operator","principal":"ann","upstream":"slow","tool":"research"`, `"event":"calls resumed by an operator","principal":"ann","upstream":"slow","tool":""`,
	} {
		if !strings.Contains(string(events), want) {
			t.Errorf("%s lacks %s", events, want)
		}
	}
	if got := again.command(t, "upstreams", "--json"); !json.Valid([]byte(got)) || strings.Contains(got, `"paused"`) {
		t.Error(got)
	}
}

// A pause outlives a restart on a folder as well.
func TestPauseInAFolder(t *testing.T) {
	t.Parallel()
	w := &pauseWorld{t: t, store: "file:" + t.TempDir(), server: startServer(t, "slowserver"), audit: filepath.Join(t.TempDir(), "audit")}
	a := w.start()
	a.command(t, "pause", "slow")
	a.Kill()
	_, _, err := w.start().client(true).CallTool(t.Context(), "count_words", map[string]any{"text": "one"})
	wantPaused(t, "a call", err, "this server is paused by its operator")
}
