package e2e

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
	"time"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/e2e/nativetasks"
	"taskgate/internal/mcp"
	"taskgate/internal/proc"
)

// The servers of TestTable have the same tools: echo, steps (which reports progress), slow, hang
// (until it is cancelled, which it notes in a directory), ask, fail, broken and large. Those of
// the TypeScript SDKs are in testdata/node.
const (
	stepLength = 250 * time.Millisecond
	slowLength = 800 * time.Millisecond
	largeSize  = 4 << 20
	brokenCode = -32010
)

// childVar makes the test binary the server over stdio that it names, marksVar is its directory.
const (
	childVar = "TASKGATE_E2E_SERVER"
	marksVar = "MARKS"
)

// mark notes what happened to the call with this key.
func mark(marks, what, key string) {
	_ = os.WriteFile(filepath.Join(marks, what+"-"+key), nil, 0o600)
}

// seen waits until the client of a call has seen progress, if it ever does.
func seen(ctx context.Context, marks, key string) {
	for range 100 {
		if _, err := os.Stat(filepath.Join(marks, "noted-"+key)); err == nil || ctx.Err() != nil {
			return
		}
		pause(ctx, stepLength/5)
	}
}

// pause is a pause that ends early with the call.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// tableSDK is a server of the Go SDK. It speaks both eras, or, if it is modern, refuses to be
// initialized.
func tableSDK(marks string, modern bool, options *sdk.ServerOptions) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "go-sdk", Version: "1"}, options)
	if modern {
		s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
			return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
				if method == mcp.MethodInitialize {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "this server speaks 2026-07-28 only"}
				}
				return next(ctx, method, req)
			}
		})
	}
	reply := func(s string) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}}, nil
	}
	tools := map[string]func(context.Context, *sdk.CallToolRequest, string) (*sdk.CallToolResult, error){
		"echo": func(_ context.Context, _ *sdk.CallToolRequest, text string) (*sdk.CallToolResult, error) {
			return reply(text)
		},
		"steps": func(ctx context.Context, r *sdk.CallToolRequest, key string) (*sdk.CallToolResult, error) {
			for i := range 3 {
				if token := r.Params.GetProgressToken(); token != nil {
					p := &sdk.ProgressNotificationParams{ProgressToken: token, Message: fmt.Sprint("step ", i+1), Progress: float64(i + 1), Total: 3}
					if err := r.Session.NotifyProgress(ctx, p); err != nil {
						return nil, err
					}
				}
				pause(ctx, stepLength)
			}
			seen(ctx, marks, key)
			return reply("walked")
		},
		"slow": func(ctx context.Context, _ *sdk.CallToolRequest, _ string) (*sdk.CallToolResult, error) {
			pause(ctx, slowLength)
			return reply("slept")
		},
		"hang": func(ctx context.Context, _ *sdk.CallToolRequest, key string) (*sdk.CallToolResult, error) {
			mark(marks, "ran", key)
			<-ctx.Done()
			mark(marks, "gone", key)
			return reply("late")
		},
		// The SDK asks legacy clients by a request, and calls again.
		"ask": func(_ context.Context, r *sdk.CallToolRequest, _ string) (*sdk.CallToolResult, error) {
			answer, ok := r.Params.InputResponses["who"].(*sdk.ElicitResult)
			if !ok {
				return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"who": &sdk.ElicitParams{
					Mode: "form", Message: "who?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string"}}}`),
				}}}, nil
			}
			return reply(fmt.Sprint("hello ", answer.Content["name"]))
		},
		"fail": func(context.Context, *sdk.CallToolRequest, string) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "failed on purpose"}}}, nil
		},
		"broken": func(context.Context, *sdk.CallToolRequest, string) (*sdk.CallToolResult, error) {
			return nil, &jsonrpc.Error{Code: brokenCode, Message: "broken on purpose"}
		},
		"large": func(context.Context, *sdk.CallToolRequest, string) (*sdk.CallToolResult, error) {
			return reply(strings.Repeat("x", largeSize))
		},
	}
	for name, run := range tools {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				var args struct{ Text, Key string }
				if len(r.Params.Arguments) > 0 {
					if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
						return nil, err
					}
				}
				return run(ctx, r, args.Text+args.Key)
			})
	}
	return s
}

// tableTasks are the tools that a modern server with tasks runs as such.
var tableTasks = map[string]nativetasks.Tool{"slow": {Required: true}, "hang": {}, "steps": {}, "ask": {}}

// tableNative is a modern server with tasks.
func tableNative(marks string) (*sdk.Server, *nativetasks.Server) {
	s := tableSDK(marks, true, &sdk.ServerOptions{Capabilities: nativetasks.Capabilities()})
	return s, nativetasks.New(s, tableTasks)
}

// tableMCPGo is a server of mcp-go, which speaks both eras, and has tasks and questions in the
// legacy one.
func tableMCPGo(marks string) *server.MCPServer {
	s := server.NewMCPServer("mcp-go", "1", server.WithToolCapabilities(true), server.WithElicitation(), server.WithTaskCapabilities(true, true, true))
	add := func(name string, run func(context.Context, mcpgo.CallToolRequest) (string, error), options ...mcpgo.ToolOption) {
		s.AddTool(mcpgo.NewTool(name, options...), func(ctx context.Context, r mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
			text, err := run(ctx, r)
			if err != nil {
				return nil, err
			}
			return mcpgo.NewToolResultText(text), nil
		})
	}
	add("echo", func(_ context.Context, r mcpgo.CallToolRequest) (string, error) { return r.GetString("text", ""), nil },
		mcpgo.WithString("text"))
	add("steps", func(ctx context.Context, r mcpgo.CallToolRequest) (string, error) {
		for i := range 3 {
			if m := r.Params.Meta; m != nil && m.ProgressToken != nil {
				_ = s.SendNotificationToClient(ctx, mcp.NotifyProgress, map[string]any{
					"progressToken": m.ProgressToken, "progress": i + 1, "total": 3, "message": fmt.Sprint("step ", i+1),
				})
			}
			pause(ctx, stepLength)
		}
		seen(ctx, marks, r.GetString("key", ""))
		return "walked", nil
	})
	add("slow", func(context.Context, mcpgo.CallToolRequest) (string, error) {
		<-time.After(slowLength) // it does not watch its context, which ends with the request (protocol.md C 9)
		return "slept", nil
	}, mcpgo.WithTaskSupport(mcpgo.TaskSupportRequired))
	add("hang", func(ctx context.Context, r mcpgo.CallToolRequest) (string, error) {
		mark(marks, "ran", r.GetString("key", ""))
		<-ctx.Done()
		mark(marks, "gone", r.GetString("key", ""))
		return "late", nil
	}, mcpgo.WithString("key"))
	add("ask", func(ctx context.Context, _ mcpgo.CallToolRequest) (string, error) {
		answer, err := s.RequestElicitation(ctx, mcpgo.ElicitationRequest{Params: mcpgo.ElicitationParams{
			Message: "who?", RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}}},
		}})
		if err != nil {
			return "", err
		}
		return fmt.Sprint("hello ", answer.Content), nil
	})
	s.AddTool(mcpgo.NewTool("fail"), func(context.Context, mcpgo.CallToolRequest) (*mcpgo.CallToolResult, error) {
		return mcpgo.NewToolResultError("failed on purpose"), nil
	})
	add("broken", func(context.Context, mcpgo.CallToolRequest) (string, error) {
		return "", fmt.Errorf("broken on purpose")
	})
	add("large", func(context.Context, mcpgo.CallToolRequest) (string, error) {
		return strings.Repeat("x", largeSize), nil
	})
	return s
}

// serveChild is the test binary as a server over stdio.
func serveChild(kind string) int {
	ctx, marks := context.Background(), os.Getenv(marksVar)
	var err error
	switch kind {
	case "modern-tasks":
		s, own := tableNative(marks)
		err = s.Run(ctx, own.Transport(&sdk.StdioTransport{}))
		own.Close()
	case "both":
		err = tableSDK(marks, false, nil).Run(ctx, &sdk.StdioTransport{})
	case "mcp-go":
		err = server.NewStdioServer(tableMCPGo(marks)).Listen(ctx, os.Stdin, os.Stdout)
	default:
		err = fmt.Errorf("no server is called %q", kind)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// target is where a server is: an address, or a command for the client or the gateway to run.
type target struct {
	URL     string            `json:"url,omitempty"`
	SSE     string            `json:"sse,omitempty"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
}

// goTarget is a server in Go.
func goTarget(kind string) func(t *testing.T, over, marks string) target {
	return func(t *testing.T, over, marks string) target {
		t.Helper()
		if over == "stdio" {
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			return target{Command: exe, Env: map[string]string{childVar: kind, marksVar: marks}}
		}
		handler := func(s *sdk.Server) http.Handler {
			return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true})
		}
		var h http.Handler
		switch kind {
		case "modern-tasks":
			s, own := tableNative(marks)
			t.Cleanup(own.Close)
			h = own.HTTP(handler(s))
		case "both":
			h = handler(tableSDK(marks, false, nil))
		case "mcp-go":
			h = server.NewStreamableHTTPServer(tableMCPGo(marks))
		}
		web := httptest.NewServer(h)
		// It does not wait for tools that never heard that they were cancelled.
		t.Cleanup(func() { _ = web.Config.Close() })
		return target{URL: web.URL}
	}
}

// scriptDir is a directory in which the scripts of testdata/node find their packages.
func scriptDir(t *testing.T, scripts ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(nodeDir(t), "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	for _, name := range scripts {
		text, err := os.ReadFile(filepath.Join("testdata", "node", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// nodeTarget is a server in Node: stdio and listen are its script and arguments over stdio and to
// listen at PORT.
func nodeTarget(t *testing.T, over, dir string, env map[string]string, stdio, listen []string) target {
	t.Helper()
	if over == "stdio" {
		return target{Command: nodeBinary(nodeDir(t)), Args: stdio, Env: env, Cwd: dir}
	}
	addr := freeAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	vars := []string{"PORT=" + port}
	for name, value := range env {
		vars = append(vars, name+"="+value)
	}
	start(t, addr, proc.Command{Name: listen[0], Path: nodeBinary(nodeDir(t)), Dir: dir, Env: vars, Args: listen})
	if over == "HTTP+SSE" {
		return target{SSE: "http://" + addr + "/sse"}
	}
	return target{URL: "http://" + addr + "/mcp"}
}

// tableTools are the tools of the servers of both TypeScript SDKs.
const tableTools = "tabletools.mjs"

// ts1Target is a server of the TypeScript SDK 1.x.
func ts1Target(tasks bool) func(t *testing.T, over, marks string) target {
	return func(t *testing.T, over, marks string) target {
		t.Helper()
		env := map[string]string{marksVar: marks}
		if tasks {
			env["TASKS"] = "1"
		}
		const script = "ts1server.mjs"
		return nodeTarget(t, over, scriptDir(t, script, tableTools), env, []string{script}, []string{script})
	}
}

// ts2Target is a server of the TypeScript SDK 2.x.
func ts2Target(t *testing.T, over, marks string) target {
	t.Helper()
	const script = "ts2server.mjs"
	return nodeTarget(t, over, scriptDir(t, script, tableTools), map[string]string{marksVar: marks}, []string{script}, []string{script})
}

// everythingTarget is the reference server.
func everythingTarget(t *testing.T, over, _ string) target {
	t.Helper()
	script := filepath.Join("node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")
	listen := map[string]string{"HTTP": "streamableHttp", "HTTP+SSE": "sse"}[over]
	return nodeTarget(t, over, nodeDir(t), nil, []string{script, "stdio"}, []string{script, listen})
}
