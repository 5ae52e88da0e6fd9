package gateway

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"

	"golang.org/x/time/rate"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/legacy"
	"taskgate/gateway/modern"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// table is what follows from one configuration. It is replaced as a whole, so that a request ends as it
// began. State that outlives a request is elsewhere.
type table struct {
	*Gateway
	config  *config.Config
	routes  []*route
	methods *auth.Methods
	pace    *pace // nil for no rate
	origins *originGuard
	// addresses are those that a share of the limits is counted by.
	addresses auth.Addresses
	handler   http.Handler
}

// Prepare checks that the gateway can go on with another configuration. It returns a function that makes
// it do so, for all requests from then on. Keys that are only read at the start must be unchanged:
// config.Config.Over lists them. upstreams and secure are as in Options, and the same for unchanged
// upstreams.
func (g *Gateway) Prepare(c *config.Config, upstreams map[string]upstream.Client, secure map[string]*tls.Config) (use func(), err error) {
	before := g.now.Load()
	methods, err := before.methods.Renew(c, secure)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	next, err := g.newTable(c, methods, upstreams, before)
	if err != nil {
		return nil, err
	}
	return func() {
		methods.Use(before.methods)
		g.calls.Limit(g.limits.MaxCalls, c.MaxCallsPerOwner, c.SignsIn())
		g.streams.Limit(g.limits.MaxStreams, g.limits.MaxStreamsPerOwner, c.SignsIn())
		g.limitSessions(c)
		g.useTable(next)
		for _, u := range next.routes {
			if old := before.findEndpoint(u.endpoint.Name); old != nil {
				u.endpoint.Watchers.TellChanges(old.Config, u.endpoint.Config)
			}
		}
	}, nil
}

// useTable has a table be served.
func (g *Gateway) useTable(t *table) {
	for _, u := range t.routes {
		u.endpoint.Upstream.OnSessionQuestion(u.legacy.AskSession)
	}
	g.now.Store(t)
}

// newTable makes the table of a configuration. before is the one that it replaces; nil for none.
func (g *Gateway) newTable(c *config.Config, methods *auth.Methods, upstreams map[string]upstream.Client, before *table) (*table, error) {
	t := &table{Gateway: g, config: c, methods: methods, origins: newOriginGuard(c, g.options.Logger), addresses: auth.NewAddresses(c)}
	if before != nil && before.config.Rate == c.Rate {
		t.pace = before.pace
	} else {
		t.pace = newPace(c.Rate, g.tel)
	}
	for _, u := range c.Upstreams {
		if upstreams[u.Name] == nil {
			return nil, fmt.Errorf("gateway: upstream %q cannot be reached: it has no client", u.Name)
		}
		if u.Removed && t.serves(u.Path) {
			continue // the upstream that has its path reads its tasks
		}
		e := &endpoint.Endpoint{
			Name: u.Name, Config: u, Global: c, Upstream: upstreams[u.Name], Shim: audited(g.options.Shim, g.options.Audit),
			Telemetry: g.tel, Log: g.options.Logger.With("upstream", u.Name), Calls: g.calls, Streams: g.streams, State: g.state,
			Relist: rate.Sometimes{Interval: endpoint.RelistAge}, Watchers: &endpoint.Watchers{},
		}
		if old := before.findEndpoint(u.Name); old != nil {
			e.Before, e.Watchers = old.Convertible(), old.Watchers
			e.Identify(old.Identity())
		} else {
			e.Identify(g.identity())
		}
		t.addUpstream(e)
	}
	t.handler = t.timed(t.origins.wrap(t.pages(t.mux())))
	return t, nil
}

// findEndpoint returns the endpoint of an upstream; nil for a new one.
func (t *table) findEndpoint(upstream string) *endpoint.Endpoint {
	if t == nil {
		return nil
	}
	for _, u := range t.routes {
		if u.endpoint.Name == upstream {
			return u.endpoint
		}
	}
	return nil
}

// identity is the gateway's own.
func (g *Gateway) identity() []byte {
	own := append([]byte(`{"name":"taskgate","version":`), jsonrpc.AppendString(nil, cmp.Or(g.options.Version, "dev"))...)
	return append(own, '}')
}

// addUpstream adds an upstream to those that are served.
func (t *table) addUpstream(e *endpoint.Endpoint) {
	h := &legacy.Handler{Endpoint: e, Sessions: t.sessions}
	t.routes = append(t.routes, &route{table: t, endpoint: e, modern: &modern.Handler{Endpoint: e}, legacy: h,
		signsIn: t.config.AuthOf(e.Config).Required(), restricted: e.Config.Restricted(),
		metadata: t.methods.Page(e.Name), resource: t.methods.Resource(e.Name), page: t.config.PublicURL + auth.MetadataPath(e.Config)})
}

// mux returns the routes. Every upstream has one path that both eras share (design.md 0.2). A modern
// client only posts to it; a legacy client also opens its stream by GET and ends its session by DELETE.
// The mux answers any other method with 405. The origin of a page is checked before its key: a browser
// asks without a key first (auth.go).
func (t *table) mux() *http.ServeMux {
	mux := http.NewServeMux()
	for _, u := range t.routes {
		// The path is served with a slash at its end, too: mcpo adds one to each URL (mcpo #209). Servers with
		// Express take that, and those with Starlette redirect. Another upstream cannot have that path.
		path := strings.TrimSuffix(u.endpoint.Config.Path, "/")
		u.servePath(mux, path+"/{$}")
		if path != "" {
			u.servePath(mux, path)
		}
	}
	return mux
}

// servePath serves the upstream at a path.
func (u *route) servePath(mux *http.ServeMux, path string) {
	mux.HandleFunc("POST "+path, u.authenticate(u.servePOST))
	if u.offers(mcp.Legacy, jsonrpc.Message{}) != nil {
		return
	}
	mux.HandleFunc("HEAD "+path, notAllowed) // or it would be taken for a GET
	mux.HandleFunc("GET "+path, u.authenticate(plain(u.legacy.ServeGET)))
	mux.HandleFunc("DELETE "+path, u.authenticate(plain(u.legacy.ServeDELETE)))
}
