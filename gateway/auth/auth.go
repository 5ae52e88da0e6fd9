// Package auth says who a request is from. It takes the headers of a request and the address of its connection,
// and returns a [Caller], or the [Refusal] that its client gets. Each upstream has one [Method] to sign in; a
// failure of that method is final.
//
// A method works before the request is read. Only the scopes of a tool are checked later, by [Caller.Lacks]. If
// servers sign callers in themselves (passthrough), [Credentials] keep what the servers are shown.
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
	"reflect"
	"slices"
	"strings"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/work"
	"taskgate/shim"
)

// Method is one way to sign in.
type Method interface {
	// Identify says who sent a request, or how it is refused. It returns both for a known caller who lacks the
	// right to call here. It leaves the body unread.
	Identify(r *http.Request) (Caller, *Refusal)
	// Recall returns the owner of a request from memory; "" for an unknown caller.
	Recall(r *http.Request) string
}

// Caller is who a request is from.
type Caller struct {
	Principal shim.Principal
	names
	token   *grant    // nil if the gateway has verified none
	request *passedOn // of a request whose token goes on to the server; else nil
}

// names are those by which people know a caller.
type names struct {
	issuer string // of a verified token; "" for none
	name   string // in a trusted header, or what the issuer calls it; "" for none
	client string // to which the token was given; "" if unknown
	// called are what principals of tools may call the caller: the name of a key, the user in a trusted header, or
	// the claims of a verified token.
	called []string
}

// Names are the names by which an operator knows a caller whose principal is a hash, as attributes of a record:
// the issuer of a token, the value of its claim or of the trusted header, and the client that the token was
// given to.
func (c Caller) Names() []any {
	var names []any
	for _, one := range [][2]string{{"issuer", c.issuer}, {"name", c.name}, {"client", c.client}} {
		if one[1] != "" {
			names = append(names, one[0], one[1])
		}
	}
	return names
}

// callerKey is the key of the context value that CallerOf reads.
type callerKey struct{}

// WithCaller puts the caller of a request into its context.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller in whose request something happens; false outside of requests.
func CallerOf(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// Lacks refuses a caller whose token lacks one of these scopes, which are separated by spaces. A caller without
// a token has no scopes.
func (c Caller) Lacks(scopes string) *Refusal {
	switch {
	case scopes == "":
		return nil
	case c.token == nil:
		return &Refusal{Status: http.StatusForbidden, Message: "this tool needs a token"}
	}
	return c.token.refuseWithout(strings.Fields(scopes))
}

// IsOneOf reports whether the caller is one of the principals of a tool, as config.Tool has them; none are everybody.
func (c Caller) IsOneOf(principals []string) bool {
	return len(principals) == 0 || slices.ContainsFunc(principals, func(name string) bool { return slices.Contains(c.called, name) })
}

// Refusal is the answer to a request whose caller is unknown, or lacks the right to make it.
type Refusal struct {
	Status    int
	Challenge string // the header WWW-Authenticate; "" for none
	Message   string
}

// Options are what Methods are made of, besides the configuration.
type Options struct {
	// Credentials take the tokens that go on to servers; nil makes new ones.
	Credentials *Credentials
	// TLS says how the servers of upstreams are reached by https, by the name of the upstream; nil for the
	// authorities of the system.
	TLS    map[string]*tls.Config
	Logger *slog.Logger
}

// Methods are the ways to sign in of all upstreams.
type Methods struct {
	byName      map[string]made
	issuers     map[string]*issuer // by issuer and jwks_url
	tokens      map[string]*tokenCache
	credentials *Credentials
	secret      []byte // of the hashes of tokens that cannot be verified
	work        *work.Background
	log         *slog.Logger
}

// made is a method with what it is made of.
type made struct {
	Method
	of   source
	tls  *tls.Config
	page *Page // nil for none
}

// source is what a method is made of. A method is made anew only if its source changes.
type source struct {
	auth      config.Auth
	audiences []string
	public    string
	path, url string
	host      config.Switch
	claims    bool // of tokens are kept, since tools have principals
}

// New makes the methods of a configuration. The first requests to issuers come with [Methods.Run]; under
// passthrough with the first token, which names the issuer.
func New(c *config.Config, o Options) (*Methods, error) {
	secret, err := tokenSecret(c)
	if err != nil {
		return nil, err
	}
	if o.Credentials == nil {
		o.Credentials = NewCredentials(nil, nil)
	}
	before := &Methods{credentials: o.Credentials, secret: secret, work: work.NewBackground(context.Canceled), log: o.Logger}
	m, err := before.Renew(c, o.TLS)
	if err != nil {
		return nil, err
	}
	m.credentials.replaceTokens(m.tokens)
	return m, nil
}

// Renew makes the methods of another configuration, whose state_keys are the same. An unchanged method stays,
// with all that it remembers. The caller calls Use before it uses them.
func (m *Methods) Renew(c *config.Config, secure map[string]*tls.Config) (*Methods, error) {
	next := &Methods{
		byName: map[string]made{}, issuers: map[string]*issuer{}, tokens: m.credentials.of(c),
		credentials: m.credentials, secret: m.secret, work: m.work, log: m.log,
	}
	for _, u := range c.Upstreams {
		one := made{of: sourceOf(c, u), tls: secure[u.Name]}
		if old, ok := m.byName[u.Name]; ok && old.tls == one.tls && reflect.DeepEqual(old.of, one.of) {
			one = old
			if j := one.of.auth.JWT; j != nil {
				next.issuers[issuerKey(j)] = m.issuers[issuerKey(j)]
			}
		} else if err := next.makeMethod(&one, m, c, u); err != nil {
			return nil, fmt.Errorf("who may call %s: %w", u.Name, err)
		}
		next.byName[u.Name] = one
	}
	return next, nil
}

// Use makes these methods remember tokens, and fetches the keys of new issuers.
func (m *Methods) Use(before *Methods) {
	m.credentials.replaceTokens(m.tokens)
	for key, i := range m.issuers {
		if before.issuers[key] == nil {
			m.fetchKeys(context.Background(), i)
		}
	}
}

func sourceOf(c *config.Config, u *config.Upstream) source {
	s := source{auth: c.AuthOf(u), public: c.PublicURL, path: u.Path, url: u.URL, host: u.ForwardHost, claims: u.NamesPrincipals()}
	switch {
	case s.auth.JWT != nil:
		s.audiences = c.Audiences(u, s.auth.JWT.Audiences)
	case s.auth.Passthrough != nil:
		s.audiences = c.Audiences(u, s.auth.Passthrough.Audiences)
	}
	return s
}

func (m *Methods) makeMethod(one *made, before *Methods, c *config.Config, u *config.Upstream) (err error) {
	switch a := one.of.auth; {
	case len(a.Keys) > 0:
		one.Method, err = newKeyring(a.Keys)
	case a.JWT != nil:
		j := *a.JWT
		j.Audiences = one.of.audiences
		one.page = describeResource(c.PublicURL, u, &j)
		one.Method, err = newTokens(&j, m.issuerFor(&j, before), one.page.URL, one.of.claims, m.log)
	case a.Passthrough != nil:
		one.Method = m.passthrough(c, u, one.tls)
	case a.TrustedHeader != nil:
		one.Method = newTrusted(a.TrustedHeader)
	default:
		one.Method = anybody{}
	}
	return err
}

// issuerFor returns the issuer that all upstreams share which take its tokens.
func (m *Methods) issuerFor(j *config.JWT, before *Methods) *issuer {
	key := issuerKey(j)
	if m.issuers[key] == nil {
		m.issuers[key] = before.issuers[key]
	}
	if m.issuers[key] == nil {
		m.issuers[key] = newIssuer(j.Issuer, j.JWKSURL, m.work, m.log)
	}
	return m.issuers[key]
}

func issuerKey(j *config.JWT) string { return j.Issuer + " " + j.JWKSURL }

// Of is the method of an upstream.
func (m *Methods) Of(upstream string) Method { return m.byName[upstream].Method }

// Page is what clients of an upstream may read before they sign in; nil for nothing.
func (m *Methods) Page(upstream string) *Page { return m.byName[upstream].page }

// Resource is the server of an upstream as a protected resource; nil if the gateway signs callers in itself.
func (m *Methods) Resource(upstream string) *Resource {
	if p, ok := m.Of(upstream).(*passthrough); ok {
		return p.resource
	}
	return nil
}

// Run fetches the keys of issuers before the first token comes, and forgets unused tokens, until ctx ends. It
// also serves the methods that Renew makes.
func (m *Methods) Run(ctx context.Context) error {
	for _, i := range m.issuers {
		m.fetchKeys(ctx, i)
	}
	tick := time.NewTicker(forgetEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.credentials.forgetUnused()
		case <-ctx.Done():
			return m.work.Close(context.Background()) // the fetches end with it
		}
	}
}

// fetchKeys fetches the keys of an issuer in the background. The issuer logs the outcome.
func (m *Methods) fetchKeys(ctx context.Context, i *issuer) {
	m.work.Go(ctx, func(ctx context.Context) { _, _ = i.keys.getAnswer(ctx) })
}

// anybody lets everybody in, as the anonymous principal.
type anybody struct{}

func (anybody) Identify(*http.Request) (Caller, *Refusal) { return Caller{}, nil }

func (anybody) Recall(*http.Request) string { return "" }

// newPrincipal makes a principal of what a method knows of a caller. It is the same on each replica and after
// each start. Each part is hashed with its length, and the colon keeps it apart from names of keys, so two
// callers, of one method or of two, have different principals (design.md 0.7).
func newPrincipal(method string, parts ...string) shim.Principal {
	h := sha256.New()
	for _, part := range append([]string{method}, parts...) {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write([]byte(part))
	}
	return shim.Principal{Subject: method + ":" + base64.RawURLEncoding.EncodeToString(h.Sum(nil))}
}

// AddressOf names the caller of a request by the address of its connection; an IPv6 address by its network,
// since a client may choose the rest.
func AddressOf(r *http.Request) string {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return nameAddress(at.Addr().Unmap())
}

func nameAddress(addr netip.Addr) string {
	if addr.Is4() {
		return addr.String()
	}
	network, _ := addr.Prefix(64)
	return network.Masked().Addr().WithZone("").String()
}

// Addresses tell which addresses are those of one caller.
type Addresses struct{ proxies []netip.Prefix }

// NewAddresses takes the proxies of a configuration that callers are named by.
func NewAddresses(c *config.Config) Addresses {
	if c.Auth.TrustedHeader == nil {
		return Addresses{}
	}
	return Addresses{networksOf(c.Auth.TrustedHeader)}
}

// ShareOf names the address of a connection, as AddressOf does. It is "" for one that many callers may have:
// loopback, that of a proxy which names its callers, and what is no address.
func (a Addresses) ShareOf(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	addr := at.Addr().Unmap().WithZone("")
	if err != nil || addr.IsLoopback() || slices.ContainsFunc(a.proxies, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return ""
	}
	return nameAddress(addr)
}
