package peers

import "strings"

var supergateway = Peer{
	Name: "supergateway", Version: "4.0.0", Way: AroundServer, Path: "/mcp", NPM: "supergateway@4.0.0",
	Words: []Word{{[]string{"elicitation, 2026", "sampling, 2026", "roots, 2026", "resources/updated, 2026", "tools/list_changed, 2026"},
		"https://github.com/supercorp-ai/supergateway/blob/v4.0.0/README.md#stdio--streamable-http"}},
	Settings: "`--outputTransport streamableHttp --stateful`, for sessions; no `--sessionTimeout`",
	Docs:     []string{"https://github.com/supercorp-ai/supergateway/blob/v4.0.0/README.md#stdio--streamable-http"},
}

func init() {
	supergateway.Start = func(s Setup) (Program, error) {
		return s.node(supergateway, "supergateway/dist/index.js", "--stdio", strings.Join(s.Command, " "),
			"--outputTransport", "streamableHttp", "--stateful", "--port", s.port()), nil
	}
}
