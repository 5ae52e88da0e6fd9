// Package gateway speaks MCP with clients: over Streamable HTTP, in every
// revision from 2025-03-26 to 2026-07-28, at one path per upstream.
//
// Start reading at [Gateway.Handler], the route table. Which of the two faces
// answers a POST is decided in recognise.go: the modern face (modern.go: each
// request carries its own metadata) or the legacy one (legacy.go: initialize and
// sessions). Both answer through an exchange (exchange.go), which begins as JSON
// and becomes an event stream when something has to go out first, and both turn
// errors into codes by the one table in reply.go.
//
// The package knows HTTP, headers, eras and who asks. When a call becomes a task,
// and how a task moves, is the shim's business; how to reach a server is the
// upstream package's.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"taskgate/gateway/config"
	"taskgate/gateway/sealed"
	"taskgate/internal/eventstream"
	"taskgate/shim"
)

// Options is what a Gateway is made of.
type Options struct {
	Config *config.Config
	// Shim decides which calls become tasks, and keeps them.
	Shim shim.API
	// Legs reach the upstreams, by configured name.
	Legs map[string]Leg
	// Sessions keeps legacy client sessions.
	Sessions Sessions

	Logger         *slog.Logger         // nil: slog.Default
	TracerProvider trace.TracerProvider // nil: no traces
	MeterProvider  metric.MeterProvider // nil: no metrics
	// Version is the gateway's own, shown where no upstream's identity is known.
	Version string
}

// Gateway serves the configured upstreams to clients.
type Gateway struct {
	config    *config.Config
	log       *slog.Logger
	endpoints []*endpoint
	streams   *streams
	sessions  *sessionTable
	keys      keyring
	state     *sealed.Keyring // nil: no call can be parked (parked.go)
}

// New makes a Gateway. It contacts no upstream.
func New(o Options) (*Gateway, error) {
	if o.Config == nil || o.Shim == nil || o.Sessions == nil {
		return nil, errors.New("gateway: Config, Shim and Sessions are needed")
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.TracerProvider == nil {
		o.TracerProvider = tracenoop.NewTracerProvider()
	}
	if o.MeterProvider == nil {
		o.MeterProvider = noop.NewMeterProvider()
	}
	tel, err := newTelemetry(o.TracerProvider, o.MeterProvider, o.Config.Telemetry.Baggage)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	keys, err := newKeyring(o.Config.Auth)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	state, err := stateKeys(o.Config)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if state == nil {
		o.Logger.Warn("without state_keys a client of 2026-07-28 that takes no tasks cannot be asked by a server of the 2025 versions;" +
			" \"taskgate state-key\" prints a key, and all replicas need the same")
	}
	g := &Gateway{config: o.Config, log: o.Logger, streams: newStreams(), keys: keys, state: state}
	g.sessions = newSessionTable(o.Sessions, g.endUpstream)
	for _, u := range o.Config.Upstreams {
		leg := o.Legs[u.Name]
		if leg == nil {
			return nil, fmt.Errorf("gateway: upstream %q has no leg", u.Name)
		}
		e := newEndpoint(g, u, leg, o, tel)
		leg.OnPose(e.pose)
		g.endpoints = append(g.endpoints, e)
	}
	return g, nil
}

// Handler returns the route table. Every upstream has one path that both eras
// share (design.md 0.2); a modern client only ever posts to it, a legacy one also
// opens its stream by GET and ends its session by DELETE. Any other method is
// answered 405 by the mux. Where a page may come from is checked first: what a
// browser asks before it sends a key has none (auth.go).
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, e := range g.endpoints {
		mux.HandleFunc("POST "+e.config.Path, g.keys.authenticate(e.servePOST))
		mux.HandleFunc("GET "+e.config.Path, g.keys.authenticate(e.serveLegacyGET))
		mux.HandleFunc("DELETE "+e.config.Path, g.keys.authenticate(e.serveLegacyDELETE))
	}
	return newOriginGuard(g.config).wrap(g.pace(mux))
}

// pace gives a client its timeout for each chunk of an answer.
func (g *Gateway) pace(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(eventstream.Pace(w, g.config.ClientTimeout), r)
	})
}

// Run ends client sessions that have been idle for too long, until ctx ends.
func (g *Gateway) Run(ctx context.Context) error { return g.sessions.run(ctx) }

// Close ends every open stream in the way its protocol has for it (a final
// result to subscriptions/listen, the end of a legacy GET stream) and refuses new
// ones. It returns when all have ended, or with ctx's error. Requests in flight
// are left to http.Server.Shutdown, and client sessions go on on other replicas.
func (g *Gateway) Close(ctx context.Context) error {
	err := g.streams.close(ctx)
	g.sessions.close()
	return err
}

// endUpstream gives up the upstream session of a client session that has ended.
// Its id names none at the other upstreams, which then do nothing.
func (g *Gateway) endUpstream(ctx context.Context, id string) {
	for _, e := range g.endpoints {
		e.leg.EndSession(ctx, id)
	}
}
