package peers

import "path/filepath"

// What vMCP says of itself.
const (
	vmcpPage   = "https://github.com/stacklok/toolhive/blob/v0.47.0/docs/arch/10-virtual-mcp-architecture.md"
	vmcpRounds = "https://github.com/stacklok/toolhive/blob/v0.47.0/docs/arch/16-vmcp-mrtr.md"
)

var vmcp = Peer{
	Name: "ToolHive vMCP", Version: "0.47.0", Way: InFront, Path: "/mcp", Program: "bin/vmcp",
	Go: "github.com/stacklok/toolhive/cmd/vmcp", Module: "github.com/stacklok/toolhive v0.47.0",
	Settings: "a static backend, anonymous callers, `operational.timeouts.default: 1h` (default: 30 s), `conflictResolution: prefix` as in its example",
	Docs: []string{
		"https://github.com/stacklok/toolhive/blob/v0.47.0/cmd/vmcp/README.md",
		"https://github.com/stacklok/toolhive/blob/v0.47.0/examples/vmcp-config.yaml",
	},
	Words: []Word{
		{[]string{"roots"}, vmcpRounds + "#L272-L274"},
		{[]string{"resources/updated"}, vmcpPage + "#subscription-limitation-ack-level"},
		{[]string{"tools/list_changed, 2026"}, vmcpPage + "#toolsresourcesprompts-list_changed-propagation-5748-5969"},
		{[]string{"elicitation, 2026", "sampling, 2026"}, vmcpPage + "#limitation-elicitation-and-sampling-are-unavailable-to-modern-clients"},
		{[]string{"progress, 2026", "log messages, 2026"}, vmcpPage + "#L481-L486"},
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
