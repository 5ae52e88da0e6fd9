package peers

import "strings"

// nginx has the settings that its documents have for streams that are silent for long.
var nginx = Peer{
	Name: "nginx", Way: InFront, Path: "/mcp", Debian: "nginx-light", Program: "nginx",
	Settings: "`proxy_http_version 1.1`, `Connection` cleared and `keepalive` for connections that are used again; `proxy_buffering off` for " +
		"streams; `proxy_read_timeout 1h` and `proxy_send_timeout 1h` (default: 60 s); `client_max_body_size 64m` (default: 1 MiB)",
	Docs: []string{
		"https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_read_timeout",
		"https://nginx.org/en/docs/http/ngx_http_upstream_module.html#keepalive",
	},
	Start: func(s Setup) (Program, error) {
		server := strings.TrimSuffix(strings.TrimPrefix(s.Server, "http://"), "/mcp")
		file, err := s.write("nginx.conf", `
daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
error_log stderr error;
events { worker_connections 8192; }
http {
  access_log off;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  client_max_body_size 64m;
  upstream server { server %[2]s; keepalive 64; }
  server {
    listen %[3]s;
    location / {
      proxy_pass http://server;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_buffering off;
      proxy_read_timeout 1h;
      proxy_send_timeout 1h;
    }
  }
}
`, s.Dir, server, s.Listen)
		return Program{Path: "nginx", Args: []string{"-c", file, "-p", s.Dir, "-e", "stderr"}}, err
	},
}
