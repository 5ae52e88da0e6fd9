package peers

import "strings"

// haproxy has the timeouts that its manual wants to be set, long enough for a tool that is silent.
var haproxy = Peer{
	Name: "haproxy", Way: InFront, Path: "/mcp", Debian: "haproxy", Program: "haproxy",
	Settings: "`timeout connect 5s`, `timeout client 1h`, `timeout server 1h`: the manual wants each of them set, and the last longer than the longest answer",
	Docs:     []string{"https://docs.haproxy.org/2.6/configuration.html#4.2-timeout%20server"},
	Start: func(s Setup) (Program, error) {
		server := strings.TrimSuffix(strings.TrimPrefix(s.Server, "http://"), "/mcp")
		file, err := s.write("haproxy.cfg", `
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend clients
  bind %s
  default_backend servers
backend servers
  server one %s
`, s.Listen, server)
		return Program{Path: "haproxy", Args: []string{"-f", file}}, err
	},
}
