package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mark3labs/mcp-go/client/transport"
	mcpgo "github.com/mark3labs/mcp-go/mcp"

	"taskgate/internal/mcp"
)

// TestMCPGoOfferedOneEra: a client of mcp-go, which takes the newest era and has tasks in the older one
// alone, has them where `eras` offers it nothing else.
func TestMCPGoOfferedOneEra(t *testing.T) {
	t.Parallel()
	url := startServer(t, "slowserver")
	for eras, want := range map[string]string{"[legacy]": mcp.Version20251125, "[legacy, modern]": mcp.Version20260728} {
		t.Run(eras, func(t *testing.T) {
			t.Parallel()
			g := startGateway(t, configured(t, fmt.Sprintf("store: embedded\nupstreams: [{name: slow, path: /mcp, url: %q, eras: %s}]\n", url, eras))...)
			c, version := connectMCPGo(t, roadOfMCPGo(t, g.url, ""), "")
			if version != want {
				t.Fatalf("version %s, want %s", version, want)
			}
			call := mcpgo.CallToolRequest{}
			call.Params.Name, call.Params.Arguments, call.Params.Task = "research", research(1), &mcpgo.TaskParams{}
			answer, err := c.CallTool(t.Context(), call)
			if version == mcp.Version20260728 { // no task, whatever it asks for
				if err != nil {
					t.Fatal(err)
				}
				if err := wantReport(answer.Content[0].(mcpgo.TextContent).Text); err != nil {
					t.Error(err)
				}
				return
			}
			list, err := c.ListTasks(t.Context(), mcpgo.ListTasksRequest{}) // CallTool does not show the task that it was answered with
			if err != nil || len(list.Tasks) != 1 {
				t.Fatalf("tasks: %+v, %v", list, err)
			}
			get := mcpgo.GetTaskRequest{}
			get.Params.TaskId = list.Tasks[0].TaskId
			until(t, "the end of the task", func() bool {
				got, err := c.GetTask(t.Context(), get)
				return err == nil && got.Status == mcpgo.TaskStatusCompleted
			})
			result := mcpgo.TaskResultRequest{}
			result.Params.TaskId = get.Params.TaskId
			got, err := c.TaskResult(t.Context(), result)
			if err != nil || len(got.Content) == 0 {
				t.Fatalf("result: %+v, %v", got, err)
			}
			if err := wantReport(got.Content[0].(mcpgo.TextContent).Text); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDesktopEra: --era decides in which era the server is spoken to, and a client of mcp-go is in its
// own. Without it that is the era of the client.
func TestDesktopEra(t *testing.T) {
	t.Parallel()
	for _, version := range []string{mcp.Version20251125, mcp.Version20260728} {
		for era, want := range map[string]string{"legacy": "legacy", "modern": "modern", "auto": mcp.EraOf(version).String()} {
			t.Run(version+", "+era, func(t *testing.T) {
				t.Parallel()
				server := stdioServer(t)
				cmd := server.command(t, "--era", era)
				c, _ := connectMCPGo(t, transport.NewStdio(cmd.Path, append(os.Environ(), server.env...), cmd.Args[1:]...), version)
				if got := callMCPGo(t, c, "echo", map[string]any{"text": "hallo"}); !strings.Contains(got, `"hallo"`) {
					t.Errorf("echo: %s", got)
				}
				if got := noted(server.dir, "echo"); !slices.Equal(got, []string{want}) {
					t.Errorf("the server was spoken to in %q, want %s", got, want)
				}
				if n := len(noted(server.dir, "begun")); n != 1 {
					t.Errorf("it was started %d times", n)
				}
			})
		}
	}
}
