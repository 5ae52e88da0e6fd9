package peers

import "path/filepath"

var tbxark = Peer{
	Name: "TBXark mcp-proxy", Version: "0.43.2", Way: InFront, Path: "/slow/mcp", Program: "bin/mcp-proxy",
	Go: "github.com/TBXark/mcp-proxy", Module: "github.com/TBXark/mcp-proxy v0.43.2",
	Settings: "`type: streamable-http` on both sides; no `timeout` for the server, so none applies",
	Docs:     []string{"https://github.com/TBXark/mcp-proxy/blob/v0.43.2/docs/CONFIGURATION.md"},
	Words: []Word{
		{[]string{"elicitation", "sampling", "roots"}, "https://github.com/TBXark/mcp-proxy/blob/v0.43.2/client.go#L96-L100"},
		{[]string{"log messages"}, "https://github.com/TBXark/mcp-proxy/blob/v0.43.2/client.go#L306-L308"},
		{[]string{"progress", "cancellation"}, "https://github.com/TBXark/mcp-proxy/blob/v0.43.2/client.go#L193"},
		{[]string{"tools/list_changed"}, "https://github.com/TBXark/mcp-proxy/blob/v0.43.2/client.go#L107-L113"},
	},
	Start: func(s Setup) (Program, error) {
		file, err := s.write("config.json", `{
  "mcpProxy": {"baseURL": "http://%[1]s", "addr": "%[1]s", "name": "proxy", "version": "1", "type": "streamable-http"},
  "mcpServers": {"slow": {"transportType": "streamable-http", "url": "%[2]s"}}
}`, s.Listen, s.Server)
		return Program{Path: filepath.Join(s.Installed, "bin", "mcp-proxy"), Args: []string{"-config", file}}, err
	},
}
