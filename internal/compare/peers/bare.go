package peers

import "path/filepath"

// bare is the shortest reverse proxy that can be written in Go.
var bare = Peer{
	Name: "bare proxy", Version: "Go's net/http", Way: InFront, Path: "/mcp", Program: "bin/bareproxy",
	Settings: "`httputil.ReverseProxy` as it is; it flushes event streams by itself",
	Docs:     []string{"https://pkg.go.dev/net/http/httputil#ReverseProxy"},
	Start: func(s Setup) (Program, error) {
		return Program{Path: filepath.Join(s.Installed, "bin", "bareproxy"), Args: []string{"-listen", s.Listen, "-to", s.Server}}, nil
	},
}
