package peers

import "strings"

var civic = Peer{
	Name: "passthrough-mcp-server", Version: "0.12.1", Way: InFront, Path: "/mcp", NPM: "@civic/passthrough-mcp-server@0.12.1",
	Settings: "`PORT` and `TARGET_SERVER_URL`; it has no setting for how long a call may take",
	Docs:     []string{"https://www.npmjs.com/package/@civic/passthrough-mcp-server/v/0.12.1#configuration"},
}

func init() {
	civic.Start = func(s Setup) (Program, error) {
		p := s.node(civic, "@civic/passthrough-mcp-server/dist/cli.js")
		p.Env = append(p.Env, "PORT="+s.port(), "TARGET_SERVER_URL="+strings.TrimSuffix(s.Server, "/mcp"), "TARGET_SERVER_TRANSPORT=httpStream")
		return p, nil
	}
}
