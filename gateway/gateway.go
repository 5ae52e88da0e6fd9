// Package gateway serves MCP to clients over Streamable HTTP, in every revision from 2025-03-26 to 2026-07-28,
// at one path per upstream. It takes HTTP requests: table.go has the routes, origin.go and package auth say
// from where and from whom a request is taken, and recognise.go says of which era it is. The handler of that
// era answers it, in package modern or in package legacy, which keeps sessions.
//
// The shim decides when a call becomes a task, and how a task moves; package upstream reaches the servers.
package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/legacy"
	"taskgate/gateway/sealed"
	"taskgate/gateway/upstream"
	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/eventstream"
	"taskgate/internal/metrics"
	"taskgate/internal/patience"
	"taskgate/shim"

	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/errgroup"
)

// Options is what a Gateway is made of.
type Options struct {
	Config *config.Config
	// Shim decides which calls become tasks, and keeps them.
	Shim endpoint.Shim
	// Upstreams reach the servers, by configured name.
	Upstreams map[string]upstream.Client
	// Sessions keeps legacy client sessions.
	Sessions legacy.Sessions
	// Budget bounds the bytes of requests and of their answers that are held; nil for no bound. The clients of
	// the servers share it.
	Budget *budget.Bytes

	// Memory is the memory limit of the process in bytes, which limits follow; 0 for none.
	Memory int64
	// Usage has how full limits are that others keep, from 0 to 1, by their key.
	Usage map[string]func() float64

	// Credentials have the tokens that clients of passthrough have shown, which the clients of the servers need
	// as well; nil makes new ones.
	Credentials *auth.Credentials
	// TLS says how servers of passthrough are reached by https, by the name of the upstream; nil for the
	// authorities of the system.
	TLS map[string]*tls.Config

	// Audit takes a record of what callers do to tasks, and of requests that are refused for their callers. Nil
	// takes none.
	Audit *slog.Logger

	Logger         *slog.Logger         // nil: slog.Default
	TracerProvider trace.TracerProvider // nil: no traces
	Metrics        *metrics.Metrics     // nil: no metrics
	// Version is the gateway's own, shown until an upstream's identity is known.
	Version string
}

// Gateway serves the configured upstreams to clients. Its table has what depends on a configuration that may
// change.
type Gateway struct {
	options     Options
	tel         *wire.Telemetry
	limits      config.Limits // with a value for each
	calls       *shim.Bound
	connections *shim.Bound
	// connectionShares is of the first configuration: a connection leaves the share that it has entered.
	connectionShares auth.Addresses
	streams          *wire.Streams
	sessions         *legacy.Table
	state            *sealed.Keyring
	now              atomic.Pointer[table]
}

// New makes a Gateway. Upstreams are contacted later.
func New(o Options) (*Gateway, error) {
	if o.Config == nil || o.Shim == nil || o.Sessions == nil {
		return nil, errors.New("gateway: Config, Shim and Sessions are needed")
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.TracerProvider == nil {
		o.TracerProvider = tracenoop.NewTracerProvider()
	}
	state, err := StateKeys(o.Config)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if o.Credentials == nil {
		o.Credentials = auth.NewCredentials(state, nil)
	}
	tel := wire.NewTelemetry(o.TracerProvider, o.Metrics, o.Config.Baggage, o.Logger, o.Config.Log.Access == config.On)
	methods, err := auth.New(o.Config, auth.Options{Credentials: o.Credentials, TLS: o.TLS, Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	if state == nil {
		o.Logger.Warn("without state_keys a client of 2026-07-28 that takes no tasks cannot be asked by a server of the 2025 versions;" +
			" \"taskgate state-key\" prints a key, and all replicas need the same")
	}
	g := &Gateway{options: o, tel: tel, state: state, limits: o.Config.Limits.Within(o.Memory), connectionShares: auth.NewAddresses(o.Config)}
	g.makeBounds(o.Config)
	g.sessions = legacy.NewTable(o.Sessions, o.Config.StoreTimeout, g.sessionEnded)
	g.limitSessions(o.Config)
	o.Metrics.ReadOpen(g.calls.Count, g.connections.Count, g.streams.Count, g.sessions.Count)
	o.Metrics.ReadLimits(g.usage)
	first, err := g.newTable(o.Config, methods, o.Upstreams, nil)
	if err != nil {
		return nil, err
	}
	g.useTable(first)
	return g, nil
}

// Handler serves clients as the newest configuration says.
func (g *Gateway) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { g.now.Load().handler.ServeHTTP(w, r) })
}

// HTTP is Handler for a listener: each request is measured, and those that are refused are logged.
func (g *Gateway) HTTP() http.Handler { return g.tel.Observe(g.Handler()) }

// notAllowed answers an unsupported method of HTTP.
func notAllowed(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Allow", "DELETE, GET, POST")
	w.WriteHeader(http.StatusMethodNotAllowed)
}

// timed gives a client its timeout for an unread body and for each chunk of an answer, and its request the time
// that it waits for the store. The server waits for the rest of an unread body before it answers.
func (t *table) timed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 { // wire.ReadBody gives it anew
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(t.config.ClientTimeout))
		}
		r = r.WithContext(patience.With(r.Context(), t.config.StoreTimeout))
		next.ServeHTTP(eventstream.Pace(w, t.config.ClientTimeout), r)
	})
}

// Run ends client sessions that have been idle for too long, keeps the keys of issuers, and logs limits that are
// near, until ctx ends.
// Tokens can be verified once it has fetched the keys.
func (g *Gateway) Run(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error { return g.sessions.Run(ctx) })
	all.Go(func() error { return g.watchUsage(ctx) })
	all.Go(func() error { return g.now.Load().methods.Run(ctx) })
	return all.Wait()
}

// Close ends every open stream in the way its protocol has for it (a final result to subscriptions/listen, the
// end of a legacy GET stream) and refuses new ones. It returns when all have ended, or with ctx's error.
// http.Server.Shutdown ends the requests in flight, and client sessions go on on other replicas.
func (g *Gateway) Close(ctx context.Context) error {
	return errors.Join(g.streams.Close(ctx), g.sessions.Close(ctx))
}

// sessionEnded gives up the upstream session of a client session that has ended, and measures it.
func (g *Gateway) sessionEnded(ctx context.Context, s legacy.Ended) {
	for _, u := range g.now.Load().routes {
		if s.Upstream == "" || s.Upstream == u.endpoint.Config.Name {
			u.endpoint.Upstream.EndSession(ctx, s.ID)
		}
	}
	if !s.Since.IsZero() {
		g.tel.SessionEnded(ctx, s.Upstream, s.Version, s.Since)
	}
}
