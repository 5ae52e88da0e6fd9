package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/redistest"
)

// MCP Apps (ext-apps, 2026-01-26): a server offers tools with a user interface to clients that
// declare the extension, and only to them.
const (
	appsExtension = "io.modelcontextprotocol/ui"
	appsMIME      = "text/html;profile=mcp-app"
	appsView      = "ui://forecast/view.html"
	appsPage      = "<!doctype html><title>Forecast</title>"
)

// startAppsServer serves a server of the Go SDK with such a tool, without sessions if it is to
// be modern, and returns its URL. Its tool "slow" does not answer the first call, and tells
// began with each whether its client takes apps.
func startAppsServer(t *testing.T, modern bool) (url string, began <-chan bool) {
	t.Helper()
	runs := make(chan bool, 8)
	caps := &sdk.ServerCapabilities{}
	caps.AddExtension(appsExtension, nil)
	server := sdk.NewServer(&sdk.Implementation{Name: "apps", Version: "1"}, &sdk.ServerOptions{Capabilities: caps})
	schema := json.RawMessage(`{"type":"object"}`)
	answer := func(text string) sdk.ToolHandler {
		return func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			if takesApps(r.ClientCapabilities()) {
				return says(text + " with a view"), nil
			}
			return says(text), nil
		}
	}
	addTool(server, "forecast", answer("sun"))
	server.AddTool(&sdk.Tool{Name: "show_forecast", InputSchema: schema, Meta: sdk.Meta{"ui": map[string]any{"resourceUri": appsView}}}, answer("shown"))
	var calls atomic.Int32
	server.AddTool(&sdk.Tool{Name: "slow", InputSchema: schema, Meta: sdk.Meta{"ui": map[string]any{}}}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		runs <- takesApps(r.ClientCapabilities())
		if calls.Add(1) == 1 {
			<-ctx.Done()
		}
		return says("at last"), ctx.Err()
	})
	server.AddResource(&sdk.Resource{URI: appsView, Name: "view", MIMEType: appsMIME},
		func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: appsView, MIMEType: appsMIME, Text: appsPage}}}, nil
		})
	server.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
			result, err := next(ctx, method, r)
			if list, ok := result.(*sdk.ListToolsResult); ok && !takesApps(r.(*sdk.ListToolsRequest).ClientCapabilities()) {
				list.Tools = slices.DeleteFunc(slices.Clone(list.Tools), func(tool *sdk.Tool) bool { return tool.Meta["ui"] != nil })
			}
			return result, err
		}
	})
	return serve(t, streamable(server, &sdk.StreamableHTTPOptions{Stateless: modern})), runs
}

// takesApps reports whether a client can show user interfaces.
func takesApps(caps *sdk.ClientCapabilities) bool {
	if caps == nil {
		return false
	}
	settings, _ := caps.Extensions[appsExtension].(map[string]any)
	types, _ := settings["mimeTypes"].([]any)
	return slices.Contains(types, any(appsMIME))
}

// connectApps is a session of the Go SDK's client in this version of the protocol, with a key
// if there is one.
func connectApps(t *testing.T, url, version, bearer string, apps bool) *sdk.ClientSession {
	t.Helper()
	caps := &sdk.ClientCapabilities{}
	if apps {
		caps.AddExtension(appsExtension, map[string]any{"mimeTypes": []string{appsMIME}})
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "host", Version: "1"}, &sdk.ClientOptions{Capabilities: caps})
	session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: withKey(bearer)}}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	if got := session.InitializeResult().ProtocolVersion; got != version {
		t.Fatalf("version %s, want %s", got, version)
	}
	return session
}

// A client that declares MCP Apps gets the tools with a user interface, and one beside it that
// does not gets none, in every pairing of eras. Both are nobody in particular, or one principal:
// so modern clients share sessions with a legacy server.
func TestApps(t *testing.T) {
	t.Parallel()
	for server, modern := range map[string]bool{"legacy server": false, "modern server": true} {
		for client, version := range map[string]string{"legacy client": "2025-11-25", "modern client": "2026-07-28"} {
			for _, bearer := range []string{"", "alice-0123456789abcdef0123"} {
				t.Run(client+", "+server+map[bool]string{true: ", keyed"}[bearer != ""], func(t *testing.T) {
					t.Parallel()
					auth := ""
					if bearer != "" {
						auth = "auth: {keys: [alice:" + config.HashKey(bearer) + "]}"
					}
					url, _ := startAppsServer(t, modern)
					g := startGateway(t, configured(t, auth+`
upstreams:
  - {name: apps, path: /mcp, url: "`+url+`", era: `+eraOf(modern)+`}
`)...)
					for _, apps := range []bool{false, true, false, true} {
						checkApps(t, connectApps(t, g.url, version, bearer, apps), apps)
					}
				})
			}
		}
	}
}

// checkApps looks at what a client gets.
func checkApps(t *testing.T, s *sdk.ClientSession, apps bool) {
	t.Helper()
	if _, ok := s.InitializeResult().Capabilities.Extensions[appsExtension]; !ok {
		t.Errorf("the server's extensions: %v", slices.Collect(maps.Keys(s.InitializeResult().Capabilities.Extensions)))
	}
	var view any
	names := []string{}
	for tool, err := range s.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
		if ui, _ := tool.Meta["ui"].(map[string]any); ui["resourceUri"] != nil {
			view = ui["resourceUri"]
		}
	}
	want, tool, text := []string{"forecast"}, "forecast", "sun"
	if apps {
		want, tool, text = append(want, "show_forecast", "slow"), "show_forecast", "shown with a view"
	}
	if !slices.Equal(names, want) || apps != (view == appsView) {
		t.Errorf("with apps %t: tools %q, view %v", apps, names, view)
	}
	result, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: tool})
	if err != nil || goText(t, result) != text {
		t.Errorf("with apps %t: %+v, %v", apps, result, err)
	}
	if !apps {
		return
	}
	page, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: appsView})
	if err != nil || page.Contents[0].MIMEType != appsMIME || !strings.HasPrefix(page.Contents[0].Text, appsPage) {
		t.Errorf("the view: %+v, %v", page, err)
	}
}

// A replica that runs a call of a lost one again declares what its client declared.
func TestAppsOnTheOtherReplica(t *testing.T) {
	t.Parallel()
	for name, modern := range map[string]bool{"legacy server": false, "modern server": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, began := startAppsServer(t, modern)
			yaml := fmt.Sprintf(`
store: %s
heartbeat: 1s
upstreams:
  - {name: apps, path: /mcp, url: "%s", defaults: {tasks: always, recover: retry, poll_interval: 100ms}}
`, redistest.Start(t).URL(), url)
			a, b := startGateway(t, configured(t, yaml)...), startGateway(t, configured(t, yaml)...)
			created, err := a.client(true).Do(t.Context(), mcp.MethodToolsCall, map[string]any{
				"name": "slow", "_meta": map[string]any{mcp.MetaClientCapabilities: map[string]any{"extensions": map[string]any{
					mcp.ExtensionTasks: struct{}{}, appsExtension: map[string]any{"mimeTypes": []string{appsMIME}},
				}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			id, _ := jsonrpc.GetString(created, "taskId")
			for run, kill := range []func(){a.Kill, func() {}} {
				select {
				case apps := <-began:
					if !apps {
						t.Errorf("run %d: MCP Apps was not declared", run+1)
					}
				case <-time.After(60 * time.Second):
					t.Fatalf("run %d did not begin", run+1)
				}
				kill()
			}
			if got := textOf(t, waitFor(t, b.client(true), id, "completed").Result); got != "at last" {
				t.Errorf("the result is %q", got)
			}
		})
	}
}
