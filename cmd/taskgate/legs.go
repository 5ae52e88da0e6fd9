package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"

	"go.opentelemetry.io/otel/trace"

	"taskgate/gateway"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/redisstore"
	"taskgate/shim"
)

// legs are the ways to the upstreams, by configured name.
type legs map[string]*upstream.HTTP

// newLegs makes one for each upstream. Nothing is contacted.
func newLegs(c *config.Config, store *redisstore.Store, replica shim.Replica, log *slog.Logger, traces trace.TracerProvider) (legs, error) {
	out := make(legs, len(c.Upstreams))
	for _, u := range c.Upstreams {
		cfg := legConfig(c, u, replica, log, traces)
		cfg.Sessions = store.UpstreamSessions(u.Name, string(replica))
		leg, err := upstream.New(cfg)
		if err != nil {
			return nil, err
		}
		out[u.Name] = leg
	}
	return out, nil
}

func legConfig(c *config.Config, u *config.Upstream, replica shim.Replica, log *slog.Logger, traces trace.TracerProvider) upstream.Config {
	headers := make(http.Header, len(u.Headers))
	for name, value := range u.Headers {
		headers.Set(name, value)
	}
	return upstream.Config{
		Name: u.Name, URL: u.URL, Headers: headers, Era: upstream.Era(u.Era),
		Shared:         u.UpstreamSessions == config.SessionsShared || loopback(c.Listen),
		Tasks:          upstream.TaskUse(u.UpstreamTasks),
		ConnectTimeout: u.ConnectTimeout, ProbeTimeout: u.ProbeTimeout, IdleTimeout: u.IdleTimeout,
		MaxResult: int64(u.MaxResult), MaxEvent: int64(u.MaxEvent),
		Replica: string(replica), GatewayInfo: upstream.Info{Name: "taskgate", Version: moduleVersion()},
		Logger: log, TracerProvider: traces, Baggage: c.Telemetry.Baggage,
	}
}

// loopback reports whether only this machine can connect: anonymous calls then
// come from one user and may share an upstream session (design.md 0.16).
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// faces are the legs as the gateway uses them.
func (l legs) faces() map[string]gateway.Leg {
	out := make(map[string]gateway.Leg, len(l))
	for name, leg := range l {
		out[name] = leg
	}
	return out
}

func (l legs) close(ctx context.Context) error {
	var errs []error
	for _, leg := range l {
		errs = append(errs, leg.Close(ctx))
	}
	return errors.Join(errs...)
}
