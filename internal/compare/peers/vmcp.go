package peers

import "path/filepath"

var vmcp = Peer{
	Name: "ToolHive vMCP", Version: "0.47.0", Way: InFront, Path: "/mcp", Program: "bin/vmcp",
	Go: "github.com/stacklok/toolhive/cmd/vmcp", Module: "github.com/stacklok/toolhive v0.47.0",
	Settings: "a static backend, anonymous callers, `operational.timeouts.default: 1h` (default: 30 s), `conflictResolution: prefix` as in its example",
	Docs: []string{
		"https://github.com/stacklok/toolhive/blob/v0.47.0/cmd/vmcp/README.md",
		"https://github.com/stacklok/toolhive/blob/v0.47.0/examples/vmcp-config.yaml",
	},
	Start: func(s Setup) (Program, error) {
		file, err := s.write("vmcp.yaml", `
name: compared
groupRef: compared
backends:
  - name: slow
    url: %s
    transport: streamable-http
incomingAuth:
  type: anonymous
outgoingAuth:
  source: inline
  default:
    type: unauthenticated
aggregation:
  conflictResolution: prefix
  conflictResolutionConfig:
    prefixFormat: "{workload}_"
operational:
  timeouts:
    default: 1h
`, s.Server)
		return Program{
			Path: filepath.Join(s.Installed, "bin", "vmcp"),
			Args: []string{"serve", "--config", file, "--host", "127.0.0.1", "--port", s.port()},
			Env:  []string{"HOME=" + s.Dir, "VMCP_SESSION_HMAC_SECRET=a-secret-of-this-comparison-alone-32"},
		}, err
	},
}
