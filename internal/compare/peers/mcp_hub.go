package peers

var mcpHub = Peer{
	Name: "mcp-hub", Version: "4.2.1", Way: InFront, Path: "/mcp", NPM: "mcp-hub@4.2.1", SSE: true,
	Settings: "the server by its `url`; it has no setting for how long a call may take",
	Docs:     []string{"https://github.com/ravitemer/mcp-hub/blob/v4.2.1/README.md#configuration"},
	Words:    []Word{{[]string{"roots", "sampling"}, "https://github.com/ravitemer/mcp-hub/blob/v4.2.1/README.md#feature-support"}},
}

func init() {
	mcpHub.Start = func(s Setup) (Program, error) {
		file, err := s.write("hub.json", `{"mcpServers": {"slow": {"url": "%s"}}}`, s.Server)
		return s.node(mcpHub, "mcp-hub/dist/cli.js", "--port", s.port(), "--config", file), err
	}
}
