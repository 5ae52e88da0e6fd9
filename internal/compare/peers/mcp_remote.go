package peers

var mcpRemote = Peer{
	Name: "mcp-remote", Version: "0.15.1", Way: ForClient, NPM: "mcp-remote@0.15.1",
	Settings: "`--transport http-only`, since the server has Streamable HTTP; `--body-timeout 0`, as its documents say for servers that say something " +
		"infrequently (default: 300 s), and `--headers-timeout 3600`",
	Docs: []string{"https://github.com/punkpeye/mcp-remote/blob/v0.15.1/README.md#flags"},
}

func init() {
	mcpRemote.Start = func(s Setup) (Program, error) {
		return s.node(mcpRemote, "mcp-remote/dist/proxy.js", s.Server, "--transport", "http-only", "--body-timeout", "0", "--headers-timeout", "3600"), nil
	}
}
