// Package auth says who a request is from. In come the headers of a request and the address
// of its connection; out goes a [Caller], or the [Refusal] that its client gets. Each upstream
// has one [Method] to sign in, and no method ever tries another one.
//
// The package knows nothing of what a request wants: it has not been read yet. Only the
// scopes of a tool are asked for later, by [Caller.Lacks]. Where servers sign callers in
// themselves (passthrough), it also knows what they are shown: [Credentials].
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"taskgate/gateway/config"
	"taskgate/internal/work"
	"taskgate/shim"
)

// Method is one way to sign in.
type Method interface {
	// Identify says who sent a request, or how it is refused. Both is possible: the caller is
	// known, and must not call here. It does not read the body.
	Identify(r *http.Request) (Caller, *Refusal)
	// Recall returns the owner that a request is from as far as memory says. It looks nothing up;
	// "" is for everybody else.
	Recall(r *http.Request) string
}

// Caller is who a request is from.
type Caller struct {
	Principal shim.Principal
	token     *grant    // nil where the caller has shown none
	name      string    // in a trusted header, or what the issuer calls it; "" where there is none
	issuer    string    // of a token that goes on to the server; "" where there is none
	client    string    // to which that was given; "" where nobody says so
	request   *passedOn // of a request whose token goes on to the server; else nil
}

// Names are what an operator knows a caller by whose principal is a hash, as attributes of a
// record: the issuer of a token, the value of its claim or of the trusted header, and the client that the token
// was given to.
func (c Caller) Names() []any {
	switch {
	case c.token != nil:
		return ofToken(c.token.of.expected.Issuer, c.token.name, c.token.client)
	case c.issuer != "":
		return ofToken(c.issuer, c.name, c.client)
	case c.name != "":
		return []any{"name", c.name}
	}
	return nil
}

func ofToken(issuer, name, client string) []any {
	names := []any{"issuer", issuer, "name", name}
	if client != "" {
		names = append(names, "client", client)
	}
	return names
}

// callerKey is the key of the context value that CallerOf reads.
type callerKey struct{}

// WithCaller remembers the caller of a request in its context.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf is the caller in whose request something happens. It reports false outside of
// requests.
func CallerOf(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// Lacks refuses a caller whose token has not all of these scopes, which stand with spaces
// between. A caller without a token has none.
func (c Caller) Lacks(scopes string) *Refusal {
	switch {
	case scopes == "":
		return nil
	case c.token == nil:
		return &Refusal{Status: http.StatusForbidden, Message: "this tool needs a token"}
	}
	return c.token.lacks(strings.Fields(scopes))
}

// Refusal is what a request gets whose caller is not known, or may not do it.
type Refusal struct {
	Status    int
	Challenge string // the header WWW-Authenticate; "" for none
	Message   string
}

// Options are what Methods are made of, besides the configuration.
type Options struct {
	// Credentials take the tokens that go on to servers; nil for some of their own.
	Credentials *Credentials
	// TLS says how the servers of upstreams are reached by https, by the name of the upstream;
	// nil for the authorities of the system.
	TLS    map[string]*tls.Config
	Logger *slog.Logger
}

// Methods are the ways to sign in of all upstreams.
type Methods struct {
	byName      map[string]Method
	issuers     map[string]*issuer // by issuer and jwks_url
	pages       []Page
	credentials *Credentials
	work        *work.Background
}

// New makes the methods of a configuration. Nobody is contacted before [Methods.Run], but for
// those of passthrough: there it is the first token that says whom to ask.
func New(c *config.Config, o Options) (*Methods, error) {
	m := &Methods{byName: map[string]Method{}, issuers: map[string]*issuer{}, credentials: o.Credentials, work: work.NewBackground(context.Canceled)}
	if m.credentials == nil {
		m.credentials = NewCredentials(c, nil)
	}
	for _, u := range c.Upstreams {
		method, err := m.method(c, u, o)
		if err != nil {
			return nil, fmt.Errorf("who may call %s: %w", u.Name, err)
		}
		m.byName[u.Name] = method
	}
	return m, nil
}

func (m *Methods) method(c *config.Config, u *config.Upstream, o Options) (Method, error) {
	switch a := c.AuthOf(u); {
	case len(a.Keys) > 0:
		return newKeyring(a.Keys)
	case a.JWT != nil:
		j := *a.JWT
		j.Audiences = c.Audiences(u, j.Audiences)
		page := describe(c.PublicURL, u, &j)
		m.pages = append(m.pages, page)
		return newTokens(&j, m.issuer(&j, o.Logger), MaxTokens, page.URL, o.Logger)
	case a.Passthrough != nil:
		return newPassthrough(c, u, m.credentials.upstreams[u.Name], o)
	case a.TrustedHeader != nil:
		return newTrusted(a.TrustedHeader)
	}
	return anybody{}, nil
}

// issuer is one for all upstreams that take its tokens.
func (m *Methods) issuer(j *config.JWT, log *slog.Logger) *issuer {
	key := j.Issuer + " " + j.JWKSURL
	if m.issuers[key] == nil {
		m.issuers[key] = newIssuer(j.Issuer, j.JWKSURL, m.work, log)
	}
	return m.issuers[key]
}

// Of is the method of an upstream.
func (m *Methods) Of(upstream string) Method { return m.byName[upstream] }

// Pages are what clients may read without signing in.
func (m *Methods) Pages() []Page { return slices.Clone(m.pages) }

// Resource is the server of an upstream as a protected resource; nil where the gateway signs
// callers in itself.
func (m *Methods) Resource(upstream string) *Resource {
	if p, ok := m.byName[upstream].(*passthrough); ok {
		return p.resource
	}
	return nil
}

// Run fetches the keys of issuers before the first token comes, and forgets tokens that are not used,
// until ctx ends.
func (m *Methods) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, i := range m.issuers {
		m.work.Go(ctx, func(ctx context.Context) { _, _ = i.keys.get(ctx) }) // the issuer says in the log how that went
	}
	g.Go(func() error {
		<-ctx.Done()
		return m.work.Close(context.Background()) // what runs ends with its life
	})
	for _, method := range m.byName {
		if p, ok := method.(*passthrough); ok {
			g.Go(func() error { return p.run(ctx) })
		}
	}
	return g.Wait()
}

// anybody lets everybody in, as the anonymous principal.
type anybody struct{}

func (anybody) Identify(*http.Request) (Caller, *Refusal) { return Caller{}, nil }

func (anybody) Recall(*http.Request) string { return "" }

// principal makes a principal of what a method knows of a caller. The names of keys have no
// colon, and each part is hashed with its length, so no two methods make the same one, and no
// two callers of a method do (design.md 0.7). It is the same on each replica and after each
// start.
func principal(method string, parts ...string) shim.Principal {
	h := sha256.New()
	for _, part := range append([]string{method}, parts...) {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	return shim.Principal{Subject: method + ":" + base64.RawURLEncoding.EncodeToString(h.Sum(nil))}
}

// AddressOf names the caller of a request by where its connection comes from. Of an IPv6 address
// that is the network: a client may choose the rest itself.
func AddressOf(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	addr := at.Addr().Unmap()
	if addr.Is4() {
		return addr.String()
	}
	network, _ := addr.Prefix(64)
	return network.Masked().Addr().WithZone("").String()
}
