package peers

import "path/filepath"

// taskgate is this repository's program with its defaults. Where replicas are compared, they share a Redis as
// docs/operations.md has it.
var taskgate = Peer{
	Name: "taskgate", Version: "this commit", Way: InFront, Path: "/mcp", Program: "bin/taskgate",
	Settings: "none: `taskgate serve --upstream URL`; with two replicas, `--store redis://…`",
	Docs:     []string{"configuration.md", "operations.md"},
	Start: func(s Setup) (Program, error) {
		args := []string{"serve", "--upstream", s.Server, "--listen", s.Listen}
		if s.Redis != "" {
			args = append(args, "--store", s.Redis)
		}
		return Program{Path: filepath.Join(s.Installed, "bin", "taskgate"), Args: args, Env: []string{"XDG_STATE_HOME=" + s.Dir}}, nil
	},
}
