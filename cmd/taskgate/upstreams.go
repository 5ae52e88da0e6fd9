package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/gateway/upstream/stdio"
	"taskgate/internal/budget"
	"taskgate/redisstore"
	"taskgate/shim"
)

// upstreams are the clients of the upstreams, by configured name.
type upstreams map[string]*upstream.HTTP

// newUpstreams makes one for each upstream. Nothing is contacted. idle is how long a process is
// kept that nobody uses; 0 is until the gateway ends.
func newUpstreams(c *config.Config, store *redisstore.Store, replica shim.Replica, idle time.Duration, bytes *budget.Bytes, log *slog.Logger, tel *telemetry) (upstreams, error) {
	out := make(upstreams, len(c.Upstreams))
	for _, u := range c.Upstreams {
		cfg := upstreamConfig(c, u, replica, log, tel)
		cfg.Budget = bytes
		if c.AuthOf(u).Passthrough != nil {
			cfg.Shared = false // anonymous callers may show all kinds of things to the server
			cfg.MaxSeen = auth.MaxTokens
		}
		var err error
		if cfg.TLS, err = clientTLS(u.TLS); err != nil {
			return nil, fmt.Errorf("tls of upstream %s: %w", u.Name, err)
		}
		if u.Command != "" {
			// A session is a process of this replica, which no other one can use.
			cfg.Transport, cfg.SessionIdle = stdio.New(stdioConfig(c, u, idle, log)), cmp.Or(idle, math.MaxInt64)
		} else {
			cfg.Sessions = store.UpstreamSessions(u.Name)
		}
		up, err := upstream.New(cfg)
		if err != nil {
			return nil, err
		}
		out[u.Name] = up
	}
	return out, nil
}

// upstreamTLS says how the servers of upstreams are reached, for what is asked of them in the
// gateway's own name.
func upstreamTLS(c *config.Config) (map[string]*tls.Config, error) {
	out := make(map[string]*tls.Config, len(c.Upstreams))
	for _, u := range c.Upstreams {
		secure, err := clientTLS(u.TLS)
		if err != nil {
			return nil, fmt.Errorf("tls of upstream %s: %w", u.Name, err)
		}
		out[u.Name] = secure
	}
	return out, nil
}

func upstreamConfig(c *config.Config, u *config.Upstream, replica shim.Replica, log *slog.Logger, tel *telemetry) upstream.Config {
	headers := make(http.Header, len(u.Headers))
	for name, value := range u.Headers {
		headers.Set(name, value)
	}
	return upstream.Config{
		Name: u.Name, URL: u.URL, Headers: headers, Era: upstream.Era(u.Era),
		Way:          upstream.Way(u.Transport),
		Shared:       loopback(c.Listen),
		Tasks:        upstream.TaskUse(u.UpstreamTasks),
		StartTimeout: u.StartTimeout, IdleTimeout: u.IdleTimeout, MaxResult: int64(u.MaxResult),
		Replica: string(replica), GatewayInfo: upstream.Info{Name: "taskgate", Version: moduleVersion()},
		Logger: log, TracerProvider: tel.traces, Metrics: tel.metrics, Baggage: c.Baggage,
	}
}

func stdioConfig(c *config.Config, u *config.Upstream, idle time.Duration, log *slog.Logger) stdio.Config {
	env := make([]string, 0, len(u.Env))
	for _, name := range slices.Sorted(maps.Keys(u.Env)) {
		env = append(env, name+"="+u.Env[name])
	}
	out := stdio.Config{
		Name: u.Name, Command: u.Command, Args: u.Args, Env: env, Dir: u.Cwd,
		OneUser: loopback(c.Listen), MaxProcesses: u.MaxProcesses, Idle: idle,
		MaxMessage: int64(u.MaxResult), Logger: log,
	}
	if u.Era == config.EraModern {
		out.Silence = -1
	}
	return out
}

// loopback reports whether only this machine can connect: anonymous calls then
// come from one user and may share an upstream session (design.md 0.16).
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err == nil && config.IsLoopback(host)
}

// clients are the upstreams as the gateway uses them.
func (us upstreams) clients() map[string]upstream.Client {
	out := make(map[string]upstream.Client, len(us))
	for name, up := range us {
		out[name] = up
	}
	return out
}

func (us upstreams) close(ctx context.Context) error {
	g := errgroup.Group{} // at once: the end of a process takes its time
	for _, up := range us {
		g.Go(func() error { return up.Close(ctx) })
	}
	return g.Wait()
}
