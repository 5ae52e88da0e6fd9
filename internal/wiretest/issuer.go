package wiretest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"taskgate/gateway/config"
)

// PublicURL is that of a gateway whose clients have tokens, and Audience is what these are for.
const (
	PublicURL = "https://gateway.example"
	Audience  = "https://gateway.example/up/mcp"
)

// Issuer is an authorization server as far as a gateway sees it: it publishes its metadata and
// its keys, and has signed tokens.
type Issuer struct {
	URL string

	t    testing.TB
	mu   sync.Mutex
	keys []jose.JSONWebKey // the newest one is last
	down bool
	seen int
	// opaque are the tokens that are no JWT, with what introspection says of them; asked is how
	// often that was asked for.
	opaque map[string]map[string]any
	asked  int
}

// NewIssuer starts an issuer with one key. Its URL has a path if one is given, which begins
// with a slash.
func NewIssuer(t testing.TB, path string) *Issuer {
	t.Helper()
	i := &Issuer{t: t}
	i.NewKey()
	web := httptest.NewServer(i)
	t.Cleanup(web.Close)
	i.URL = web.URL + path
	return i
}

// ServeHTTP answers a gateway, unless the issuer is down.
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen++
	_, path, _ := strings.Cut(strings.TrimPrefix(i.URL, "http://"), "/")
	var answer any
	switch {
	case i.down:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case r.URL.Path == "/keys":
		answer = i.set()
	case r.URL.Path == strings.TrimSuffix("/.well-known/oauth-authorization-server/"+path, "/"):
		answer = map[string]string{"issuer": i.URL, "jwks_uri": "http://" + r.Host + "/keys"}
	case r.URL.Path == "/introspect":
		i.asked++
		if id, secret, _ := r.BasicAuth(); id != "gateway" || secret != IntrospectionSecret {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		claims := maps.Clone(i.opaque[r.FormValue("token")])
		if claims == nil {
			claims = map[string]any{"active": false}
		}
		answer = claims
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (i *Issuer) set() (s jose.JSONWebKeySet) {
	for _, k := range i.keys {
		s.Keys = append(s.Keys, k.Public())
	}
	return s
}

// Keys is the document that has its public keys.
func (i *Issuer) Keys() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	b, err := json.Marshal(i.set())
	if err != nil {
		i.t.Fatal(err)
	}
	return b
}

// NewKey has the issuer sign with a new key from now on. It publishes the old ones, too.
func (i *Issuer) NewKey() {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, jose.JSONWebKey{Key: k, KeyID: fmt.Sprint("key-", len(i.keys)), Algorithm: "ES256", Use: "sig"})
}

// NameKeys gives all its keys ids or takes them away, so from the tokens that it signs, too.
func (i *Issuer) NameKeys(named bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n := range i.keys {
		i.keys[n].KeyID = ""
		if named {
			i.keys[n].KeyID = fmt.Sprint("key-", n)
		}
	}
}

// Withdraw has it publish the newest key only.
func (i *Issuer) Withdraw() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = i.keys[len(i.keys)-1:]
}

// SetDown stops the issuer from answering, or lets it answer again.
func (i *Issuer) SetDown(down bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.down = down
}

// Seen is how many requests it has had.
func (i *Issuer) Seen() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seen
}

// Key is the key that it signs with.
func (i *Issuer) Key() *jose.JSONWebKey {
	i.mu.Lock()
	defer i.mu.Unlock()
	k := i.keys[len(i.keys)-1]
	return &k
}

// Token is a good token of a subject, but for what claims say. A claim that is nil is left out.
func (i *Issuer) Token(subject string, claims map[string]any) string {
	i.t.Helper()
	return SignedToken(i.t, jose.ES256, i.Key(), i.Claims(subject, claims))
}

// IntrospectionSecret is that of the gateway, whose name is gateway, at an issuer.
const IntrospectionSecret = "introspection-secret"

// Opaque is a token that is no JWT, for Audience. Introspection also says of it what claims say; a claim
// that is nil is left out.
func (i *Issuer) Opaque(subject string, claims map[string]any) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.opaque == nil {
		i.opaque = map[string]map[string]any{}
	}
	token := "opaque-" + rand.Text()
	i.opaque[token] = map[string]any{"active": true, "sub": subject, "aud": Audience}
	maps.Copy(i.opaque[token], claims)
	maps.DeleteFunc(i.opaque[token], func(_ string, v any) bool { return v == nil })
	return token
}

// Revoke has the issuer forget an opaque token.
func (i *Issuer) Revoke(token string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.opaque, token)
}

// Asked is how often introspection was asked for.
func (i *Issuer) Asked() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked
}

// Claims are those of a token.
func (i *Issuer) Claims(subject string, more map[string]any) map[string]any {
	now := time.Now()
	all := map[string]any{
		"iss": i.URL, "sub": subject, "aud": Audience, "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	maps.Copy(all, more)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

// SignedToken is any token. It may have further headers, or others than usual.
func SignedToken(t testing.TB, algorithm jose.SignatureAlgorithm, key any, claims map[string]any, headers ...map[jose.HeaderKey]any) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithType("at+jwt")
	for _, more := range headers {
		maps.Copy(options.ExtraHeaders, more)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, options)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// WithTokens lets in who has a token of the issuer, and nobody else.
func WithTokens(c *config.Config, i *Issuer) *config.JWT {
	c.PublicURL = PublicURL
	c.Auth = config.Auth{JWT: &config.JWT{Issuer: i.URL, Audiences: []string{Audience}}}
	return c.Auth.JWT
}
