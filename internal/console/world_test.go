package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/internal/proc"
	"taskgate/internal/programtest"
	"taskgate/internal/redistest"
	"taskgate/internal/taskclient"
)

var bin string // where taskgate is

func TestMain(m *testing.M) { os.Exit(programtest.Run(m, &bin, []string{"./cmd/taskgate"})) }

func TestLooksAtTheSources(t *testing.T) { programtest.LookAtSources(t) }

// Keys of an operator and of two clients.
const (
	operatorKey = "operator-0123456789-abcdefghij"
	adaKey      = "ada-0123456789-abcdefghij"
	bobKey      = "bob-0123456789-abcdefghij"
)

// hostile is what a server says that means harm to a page.
const hostile = `<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>`

// longTool is a tool that fails, with a name that no column has room for.
var longTool = "fails_" + strings.Repeat("for_long_", 12)

// world is two replicas in front of a server, and where that waits.
type world struct {
	t        *testing.T
	server   string
	store    string
	replicas []*replica
	goOn     chan struct{} // a tool ends for each
}

// replica is one gateway.
type replica struct {
	*proc.Process
	at, admin string
}

// newWorld starts a server and n replicas.
func newWorld(t *testing.T, n int) *world {
	t.Helper()
	w := &world{t: t, goOn: make(chan struct{}), store: redistest.Start(t).URL()}
	tools := sdk.NewServer(&sdk.Implementation{Name: "tools", Version: "1"}, nil)
	add := func(name string, do func(context.Context, *sdk.CallToolRequest) (string, error)) {
		tools.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				text, err := do(ctx, r)
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, err
			})
	}
	add("research", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
			ProgressToken: r.Params.GetProgressToken(), Progress: 1, Message: "reading " + hostile,
		}); err != nil {
			return "", err
		}
		select {
		case <-w.goOn:
			return "the report " + hostile, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
	add("book", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		answer, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Mode: "form", Message: "Which archive? " + hostile,
			RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`)})
		return fmt.Sprint(answer), err
	})
	tools.AddTool(&sdk.Tool{Name: longTool, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "the tool says no: " + hostile}}}, nil
	})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return tools }, nil))
	t.Cleanup(web.CloseClientConnections) // a call whose gateway was killed waits for its answer for ever
	w.server = web.URL
	for range n {
		w.replicas = append(w.replicas, w.startReplica())
	}
	return w
}

const gatewayYAML = `
listen: %s
admin: %s
admin_content: on
admin_auth: {keys: ["ops:%s"]}
store: %s
heartbeat: 3s
auth: {keys: ["ada:%s", "bob:%s"]}
state_keys: ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
upstreams:
  - {name: reports, path: /mcp, url: %s, defaults: {tasks: required, grace: 100ms, rerun: on}}
`

// startReplica runs a gateway until the test ends.
func (w *world) startReplica() *replica {
	t := w.t
	t.Helper()
	r := &replica{at: programtest.FreeAddr(t), admin: programtest.FreeAddr(t)}
	file := filepath.Join(t.TempDir(), "taskgate.yaml")
	yaml := fmt.Sprintf(gatewayYAML, r.at, r.admin, config.HashKey(operatorKey), w.store, config.HashKey(adaKey), config.HashKey(bobKey), w.server)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Process = programtest.Start(t, proc.Command{Name: "taskgate", Path: filepath.Join(bin, "taskgate"), Args: []string{"serve", "--config", file}}, 0, r.at, r.admin)
	return r
}

// withKey sends requests with a key.
type withKey string

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+string(k))
	return http.DefaultTransport.RoundTrip(r)
}

// client is one of a principal.
func (r *replica) client(key string) *taskclient.Client {
	return &taskclient.Client{URL: "http://" + r.at + "/mcp", Tasks: true, HTTP: &http.Client{Transport: withKey(key)}}
}

// call calls a tool, which becomes a task.
func (r *replica) call(t *testing.T, key, tool string, args map[string]any) *taskclient.Task {
	t.Helper()
	result, err := r.client(key).Do(t.Context(), "tools/call", map[string]any{"name": tool, "arguments": args, "_meta": map[string]any{
		"progressToken": "token",
		"io.modelcontextprotocol/clientCapabilities": map[string]any{
			"elicitation": map[string]any{"form": map[string]any{}}, "extensions": map[string]any{"io.modelcontextprotocol/tasks": map[string]any{}},
		},
	}})
	var task taskclient.Task
	if err == nil {
		err = json.Unmarshal(result, &task)
	}
	if err != nil || task.ID == "" {
		t.Fatalf("%s is answered with %s, %v", tool, result, err)
	}
	return &task
}

// waitTask waits until a task has a status.
func (r *replica) waitTask(t *testing.T, key, id, status string) {
	t.Helper()
	programtest.Until(t, "the task is "+status, patience, func() bool {
		task, err := r.client(key).Get(t.Context(), id)
		return err == nil && task.Status == status
	})
}

// axe is the source of axe-core, which "make node" installs.
func axe(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(programtest.NodeDir(t), "node_modules", "axe-core", "axe.min.js"))
	switch {
	case err == nil:
		return string(source)
	case os.Getenv("CI") != "":
		t.Fatalf("axe-core is missing (make node): %v", err)
	}
	return ""
}

// checkAccess has axe look at the page, in both schemes.
func (p *page) checkAccess(axe, where string) {
	p.t.Helper()
	if axe == "" {
		return
	}
	for _, scheme := range []string{"light", "dark"} {
		p.resize(1280, 800, scheme)
		run(p, chromedp.Evaluate[chromedp.Void](axe+"; undefined"))
		found := p.eval(`axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations.map((v) =>
			v.id + ": " + v.help + "\n" + v.nodes.slice(0, 3).map((n) => "  " + n.html + "\n  " + n.failureSummary).join("\n")).join("\n"))`)
		if strings.TrimSpace(found) != "" {
			p.t.Errorf("%s in %s: %s", where, scheme, found)
		}
	}
}
