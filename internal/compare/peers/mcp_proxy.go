package peers

var mcpProxy = Peer{
	Name: "mcp-proxy (npm)", Version: "6.7.19", Way: AroundServer, Path: "/mcp", NPM: "mcp-proxy@6.7.19",
	Settings: "`--requestTimeout 3600000` (default: 300 s), `--maxBodySize 0` (default: 10 MiB)",
	Docs:     []string{"https://github.com/punkpeye/mcp-proxy/blob/v6.7.19/README.md#command-line"},
	Words: []Word{
		{[]string{"elicitation", "sampling", "roots", "log messages"}, "https://github.com/punkpeye/mcp-proxy/blob/v6.7.19/README.md#what-does-not-cross-the-proxy"},
	},
}

func init() {
	mcpProxy.Start = func(s Setup) (Program, error) {
		args := []string{"--host", "127.0.0.1", "--port", s.port(), "--requestTimeout", "3600000", "--maxBodySize", "0", "--"}
		return s.node(mcpProxy, "mcp-proxy/dist/bin/mcp-proxy.mjs", append(args, s.Command...)...), nil
	}
}
