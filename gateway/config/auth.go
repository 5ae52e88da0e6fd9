package config

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
)

// Auth says who may call, in exactly one way. A request that this way refuses is refused: no other
// way is tried. Without an Auth everybody who can connect is served anonymously: the id of a task
// then gives access to it.
type Auth struct {
	// Keys are the bearer keys that let a client in, each as PRINCIPAL:HASH. The header is
	// "Authorization: Bearer KEY". The principal owns the tasks and
	// sessions made with the key; renaming it orphans them. The hash is what "taskgate hash-key"
	// prints for a key, which must be long and random, as "openssl rand -hex 32" makes one. A
	// principal may have several, so that a key can be replaced without a moment in which none works.
	Keys []BearerKey `yaml:"keys"`

	// JWT lets in who has an access token of an authorization server, signed as a JWT.
	// It needs public_url.
	JWT *JWT `yaml:"jwt"`

	// TrustedHeader lets in whom a proxy in front has signed in, and names in a header.
	TrustedHeader *TrustedHeader `yaml:"trusted_header"`

	// Anonymous and Passthrough are those of an [UpstreamAuth]: no file gives them to all upstreams.
	Anonymous   Switch       `yaml:"-"`
	Passthrough *Passthrough `yaml:"-"`
}

// UpstreamAuth is the [Auth] of one upstream.
type UpstreamAuth struct {
	// Keys are as in the auth of all.
	Keys []BearerKey `yaml:"keys"`

	// JWT is as in the auth of all.
	JWT *JWT `yaml:"jwt"`

	// TrustedHeader is only in the auth of all: one proxy stands in front of all upstreams.
	TrustedHeader *TrustedHeader `yaml:"-"`

	// Anonymous set to on lets everybody in who can connect, as nobody in particular. It
	// is for an upstream that is open where the others are not.
	Anonymous Switch `yaml:"anonymous"`

	// Passthrough lets the server say who may call: what a client signs in by goes on to it.
	Passthrough *Passthrough `yaml:"passthrough"`
}

// BearerKey is one key of one principal, as PRINCIPAL:HASH.
type BearerKey string

// The forms of the two parts of a BearerKey.
const (
	principalForm = `[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}`
	hashForm      = `[0-9A-Fa-f]{64}`
)

// BearerKeyForm is the form of a BearerKey, as a regular expression.
const BearerKeyForm = "^" + principalForm + ":" + hashForm + "$"

// Parts returns the principal of the key, and the key's hash in hexadecimal digits.
func (k BearerKey) Parts() (principal, hash string) {
	principal, hash, _ = strings.Cut(string(k), ":")
	return principal, hash
}

// JWT says which access tokens let a client in.
type JWT struct {
	// Issuer is the authorization server whose tokens are taken: the claim iss of each. Its
	// metadata (RFC 8414 or OpenID Connect discovery) says where its keys are. It must be
	// https, or http on a loopback address.
	Issuer string `yaml:"issuer" required:"true"`

	// JWKSURL is where the issuer's keys are. With it, no metadata is asked for.
	JWKSURL string `yaml:"jwks_url"`

	// Audiences are what tokens may be meant for. A token whose claim aud has none of them is
	// refused.
	Audiences []string `yaml:"audiences" required:"true"`

	// Scopes are those that every token needs.
	Scopes []string `yaml:"scopes"`
}

// TrustedHeader says which header of which addresses is believed.
type TrustedHeader struct {
	// Name is the header that names the caller.
	Name string `yaml:"name" required:"true"`

	// From are the addresses that requests are taken from, each as an address or a network
	// such as 10.0.0.0/8. A request from anywhere else is refused, with or without the
	// header. The address is that of the connection.
	From []string `yaml:"from"`
}

func (a *UpstreamAuth) seed(any) { *a = UpstreamAuth{Anonymous: Off} }

// Required reports whether callers have to sign in, at the gateway or at the server.
func (a Auth) Required() bool {
	return len(a.Keys) > 0 || a.JWT != nil || a.Passthrough != nil || a.TrustedHeader != nil
}

// AuthOf returns the auth of an upstream: its own, or else that of all.
func (c *Config) AuthOf(u *Upstream) Auth {
	if u.Auth != nil {
		return Auth(*u.Auth)
	}
	return c.Auth
}

// Hosts are the names by which clients reach the gateway: allowed_hosts, and that of public_url.
func (c *Config) Hosts() []string {
	hosts := slices.Clone(c.AllowedHosts)
	if u, err := url.Parse(c.PublicURL); err == nil && u.Hostname() != "" {
		hosts = append(hosts, u.Hostname())
	}
	return hosts
}

// Audiences are the entries of a list that a token for an upstream may be meant for: all but the
// addresses of other upstreams, with a slash at the end or without.
func (c *Config) Audiences(u *Upstream, list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(audience string) bool {
		names := func(other *Upstream) bool {
			return strings.TrimSuffix(audience, "/") == strings.TrimSuffix(c.PublicURL+other.Path, "/")
		}
		return !names(u) && slices.ContainsFunc(c.Upstreams, names)
	})
}

// SameAudiences reports whether access tokens for one upstream are also for another. Both have the auth of all.
func (c *Config) SameAudiences(a, b *Upstream) bool {
	return c.Auth.JWT == nil || slices.Equal(c.Audiences(a, c.Auth.JWT.Audiences), c.Audiences(b, c.Auth.JWT.Audiences))
}

// Open reports whether everybody may call one of the upstreams.
func (c *Config) Open() bool {
	return slices.ContainsFunc(c.Upstreams, func(u *Upstream) bool { return !c.AuthOf(u).Required() })
}

// SignsIn reports whether callers of some upstream sign in, at the gateway or at the server.
func (c *Config) SignsIn() bool {
	return slices.ContainsFunc(c.Upstreams, func(u *Upstream) bool { return c.AuthOf(u).Required() })
}

// ValidKey reports whether a client can present key as a bearer token (RFC 6750
// section 2.1): letters, digits and -._~+/ with any number of = at the end.
func ValidKey(key string) bool {
	body := strings.TrimRight(key, "=")
	return body != "" && strings.Trim(body, unreserved+"+/") == ""
}

// unreserved are the characters that mean nothing but themselves in a URL (RFC 3986 section 2.3).
const unreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"

// HashKey returns the hash of a bearer key as [BearerKey] holds it.
func HashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Passthrough lets the server itself say who may call: the header Authorization of a request goes on
// to the server with that request. The gateway verifies tokens only to know whose task is whose. It
// needs public_url and, with a Redis as the store, state_keys.
type Passthrough struct {
	// Unverified says what becomes of callers whose token cannot be verified: token gives them
	// tasks that belong to the token, and are lost to them with its refresh; block lets
	// their calls block, and they get no tasks.
	Unverified Unverified `yaml:"unverified"`

	// Audiences are what tokens may be meant for, besides the server and the gateway. It is
	// for authorization servers that write something else than an address into aud.
	Audiences []string `yaml:"audiences"`

	// Introspection verifies tokens that are no JWT of the server's issuers (RFC 7662). Its answers
	// have to say for whom a token is (aud).
	Introspection *Introspection `yaml:"introspection"`
}

// Introspection is where an authorization server says what a token is (RFC 7662).
type Introspection struct {
	// URL is the introspection endpoint. It must be https, or http on a loopback address.
	URL string `yaml:"url" required:"true"`

	// ClientID is the gateway's own name at the endpoint.
	ClientID string `yaml:"client_id" required:"true"`

	// ClientSecret goes with it.
	ClientSecret string `yaml:"client_secret" required:"true"`
}

// NewPassthrough returns a Passthrough with every default.
func NewPassthrough() *Passthrough {
	return &Passthrough{Unverified: UnverifiedToken}
}

func (t *Passthrough) seed(any) { *t = *NewPassthrough() }
