package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
	"taskgate/internal/programtest"
)

// TestRoots: server-filesystem asks its client for the roots as soon as that is ready, and serves
// those instead of the directories of its command line. Each of ten clients in a row is asked,
// directly, through taskgate stdio, and over HTTP.
func TestRoots(t *testing.T) {
	programtest.Longest(t)
	t.Parallel()
	dir, other, root := nodeDir(t), t.TempDir(), t.TempDir()
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "node_modules", "@modelcontextprotocol", "server-filesystem", "dist", "index.js")
	g := startGateway(t, configured(t, fmt.Sprintf(`
upstreams:
  - name: it
    path: /mcp
    command: %q
    args: [%q, %q]
    env: {}
`, nodeBinary(dir), script, other))...)
	for name, connect := range map[string]func() sdk.Transport{
		"directly": func() sdk.Transport {
			return &sdk.CommandTransport{Command: exec.CommandContext(t.Context(), nodeBinary(dir), script, other)}
		},
		"taskgate stdio": func() sdk.Transport {
			return &sdk.CommandTransport{Command: exec.CommandContext(t.Context(), filepath.Join(bin, "taskgate"), "stdio", "--", nodeBinary(dir), script, other)}
		},
		"HTTP": func() sdk.Transport { return &sdk.StreamableClientTransport{Endpoint: g.url} },
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 10 {
				client := sdk.NewClient(&sdk.Implementation{Name: "e2e", Version: "1"}, nil)
				client.AddRoots(&sdk.Root{Name: "root", URI: "file://" + root})
				s, err := client.Connect(t.Context(), connect(), &sdk.ClientSessionOptions{ProtocolVersion: mcp.Version20251125})
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, fmt.Sprintf("client %d is asked for its roots", i), func() error {
					r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "list_allowed_directories", Arguments: map[string]any{}})
					if err != nil {
						return err
					}
					if got := goText(t, r); !strings.Contains(got, root) || strings.Contains(got, other) {
						return fmt.Errorf("the directories are %s", got)
					}
					return nil
				})
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}
		})
	}
}
