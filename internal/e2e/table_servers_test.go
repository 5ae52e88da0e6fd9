package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mcpgo "github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/e2e/nativetasks"
	"taskgate/internal/mcp"
)

// childVar makes the test binary the server over stdio that it names, marksVar is its directory.
const (
	childVar = "TASKGATE_E2E_SERVER"
	marksVar = "MARKS"
)

// tableTasks are the tools that a modern server with tasks runs as such.
var tableTasks = map[string]nativetasks.Tool{"slow": {Required: true}, "hang": {}, "steps": {}, "ask": {}}

// tableNative is a modern server with tasks.
func tableNative(marks string) (*sdk.Server, *nativetasks.Server) {
	s := everyday(marks, true, &sdk.ServerOptions{Capabilities: nativetasks.Capabilities()})
	return s, nativetasks.New(s, tableTasks)
}

// everydayMCPGo is a server of mcp-go, which speaks both eras, and has tasks and questions in the
// legacy one.
func everydayMCPGo(marks string) *server.MCPServer {
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
		err = everyday(marks, false, nil).Run(ctx, &sdk.StdioTransport{})
	case "roots":
		err = serveRoots()
	case "mcp-go":
		err = server.NewStdioServer(everydayMCPGo(marks)).Listen(ctx, os.Stdin, os.Stdout)
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
		stateless := &sdk.StreamableHTTPOptions{Stateless: true}
		var h http.Handler
		switch kind {
		case "modern-tasks":
			s, own := tableNative(marks)
			t.Cleanup(own.Close)
			h = own.HTTP(streamable(s, stateless))
		case "both":
			h = streamable(everyday(marks, false, nil), stateless)
		case "mcp-go":
			h = server.NewStreamableHTTPServer(everydayMCPGo(marks))
		}
		return target{URL: serve(t, h)}
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
	var vars []string
	for name, value := range env {
		vars = append(vars, name+"="+value)
	}
	startNode(t, addr, dir, vars, listen...)
	if over == "HTTP+SSE" {
		return target{SSE: "http://" + addr + "/sse"}
	}
	return target{URL: "http://" + addr + "/mcp"}
}

// tableTools are the tools of the servers of both TypeScript SDKs.
const tableTools = "tabletools.mjs"

// tsTarget is a server of a TypeScript SDK, whose script it is, with more in its environment.
func tsTarget(script string, more ...string) func(t *testing.T, over, marks string) target {
	return func(t *testing.T, over, marks string) target {
		t.Helper()
		env := map[string]string{marksVar: marks}
		for _, name := range more {
			env[name] = "1"
		}
		return nodeTarget(t, over, scriptDir(t, script, tableTools), env, []string{script}, []string{script})
	}
}

// everythingTarget is the reference server.
func everythingTarget(t *testing.T, over, _ string) target {
	t.Helper()
	listen := map[string]string{"HTTP": "streamableHttp", "HTTP+SSE": "sse"}[over]
	return nodeTarget(t, over, nodeDir(t), nil, []string{everythingScript, "stdio"}, []string{everythingScript, listen})
}
