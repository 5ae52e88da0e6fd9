package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	lru "github.com/hashicorp/golang-lru/v2"

	"taskgate/gateway/config"
	"taskgate/shim"
)

// tokens lets in callers with a token of one issuer, signed as a JWT (RFC 7519, RFC 9068).
type tokens struct {
	from     *issuer
	expected jwt.Expected
	scopes   []string
	metadata string // where clients find the metadata of the resource
	claims   bool   // are kept of each token, for the principals of tools
	log      *slog.Logger

	// verified are the tokens that were let in, by their hashes.
	verified *lru.Cache[[sha256.Size]byte, *grant]

	none, broken, invalid *Refusal
}

// grant is what a token gives.
type grant struct {
	grade // without what depends on the upstream
	names
	of        *tokens
	principal shim.Principal
	keys      *keySet // the set with the key of its signature
}

// unverifiable refuses a token while nobody can say whether it is good.
var unverifiable = &Refusal{http.StatusServiceUnavailable, "", "tokens cannot be verified at the moment"}

// clockLeeway is the tolerated difference between the clocks of an issuer and of the gateway.
const clockLeeway = 30 * time.Second

// MaxTokens bounds the remembered tokens of each upstream: a few megabytes.
const MaxTokens = 10_000

// newTokens makes the method for tokens of an issuer. Tokens are remembered, to save verifying their
// signatures at each request. claims says that their claims are kept, too.
func newTokens(c *config.JWT, from *issuer, metadata string, claims bool, log *slog.Logger) (*tokens, error) {
	t := &tokens{
		from: from, scopes: c.Scopes, claims: claims, log: log,
		expected: jwt.Expected{Issuer: c.Issuer, AnyAudience: c.Audiences}, metadata: metadata,
	}
	if c.Issuer == "" || len(c.Audiences) == 0 {
		return nil, errors.New("jwt needs issuer and audiences")
	}
	t.verified, _ = lru.New[[sha256.Size]byte, *grant](MaxTokens) // fails only for size 0
	const text = "a token is needed: Authorization: Bearer TOKEN"
	t.none = challengeWith(http.StatusUnauthorized, metadata, "", text, t.scopes)
	t.broken = challengeWith(http.StatusBadRequest, metadata, "invalid_request", "Authorization must be: Bearer TOKEN", nil)
	t.invalid = challengeWith(http.StatusUnauthorized, metadata, "invalid_token", "the token is not valid here", t.scopes)
	return t, nil
}

// challengeWith makes a refusal with a challenge (Z3, RFC 6750 section 3, RFC 9728 section 5.1). metadata
// is the address of the resource's metadata; code is "" if the client has shown no token.
func challengeWith(status int, metadata, code, message string, scopes []string) *Refusal {
	c := `Bearer resource_metadata="` + metadata + `"`
	if len(scopes) > 0 {
		c += `, scope="` + strings.Join(scopes, " ") + `"`
	}
	if code != "" {
		c += `, error="` + code + `", error_description="` + message + `"`
	}
	return &Refusal{status, c, message}
}

// Identify verifies the token of a request. The reason of a refusal goes to the log only (debug).
func (t *tokens) Identify(r *http.Request) (Caller, *Refusal) {
	token, found := readBearer(r.Header)
	switch found {
	case absent:
		return Caller{}, t.none
	case broken:
		return Caller{}, t.broken
	}
	g, err := t.grantOf(r.Context(), token)
	switch {
	case errors.Is(err, errNoKeys), r.Context().Err() != nil:
		return Caller{}, unverifiable
	case err != nil:
		t.log.DebugContext(r.Context(), "a token is refused", "reason", err)
		return Caller{}, t.invalid
	}
	return Caller{Principal: g.principal, token: g, names: g.names}, g.refuseWithout(nil)
}

// Recall finds the owner of a token that was verified before.
func (t *tokens) Recall(r *http.Request) string {
	token, found := readBearer(r.Header)
	if found != present {
		return ""
	}
	if g, ok := t.verified.Peek(sha256.Sum256([]byte(token))); ok && time.Now().Before(g.Expires) {
		return g.principal.Owner()
	}
	return ""
}

// grantOf returns what a token gives, from memory if it was verified before. A token is verified anew if
// its issuer has withdrawn the key that signed it.
func (t *tokens) grantOf(ctx context.Context, token string) (*grant, error) {
	hash := sha256.Sum256([]byte(token))
	if g, ok := t.verified.Get(hash); ok && g.isSigned(ctx) && time.Now().Before(g.Expires) {
		return g, nil
	}
	g, err := t.verifyToken(ctx, token)
	if err == nil {
		t.verified.Add(hash, g)
	}
	return g, err
}

// isSigned reports whether the issuer still has the key that the token is signed with.
func (g *grant) isSigned(ctx context.Context) bool {
	set, err := g.of.from.keys.getAnswer(ctx)
	return err == nil && g.keys == set
}

// claims are the claims that are read of a token.
type claims struct {
	jwt.Claims
	client
	Scope json.RawMessage `json:"scope"`
	SCP   json.RawMessage `json:"scp"`
}

// client are the claims that say to which client a token was given.
type client struct {
	Client string `json:"client_id"` // RFC 9068, RFC 7662
	Party  string `json:"azp"`       // OpenID Connect
	CID    string `json:"cid"`       // Okta
	AppID  string `json:"appid"`     // Entra ID, version 1
}

// id is the client's id; "" if the token names none.
func (c client) id() string { return cmp.Or(c.Client, c.Party, c.CID, c.AppID) }

// verifyToken checks the signature and the claims of a token.
func (t *tokens) verifyToken(ctx context.Context, token string) (*grant, error) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, err
	}
	header := parsed.Headers[0] // a compact JWS has one
	if err := checkType(header); err != nil {
		return nil, err
	}
	keys, set, err := t.from.findKeys(ctx, header)
	if err != nil {
		return nil, err
	}
	var c claims
	var all map[string]json.RawMessage
	for _, key := range keys {
		if err = parsed.Claims(key, &c, &all); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if c.Expiry == nil {
		return nil, errors.New("the token has no exp")
	}
	if err := c.ValidateWithLeeway(t.expected.WithTime(time.Now()), clockLeeway); err != nil {
		return nil, err
	}
	if c.Subject == "" {
		return nil, errors.New("the token has no sub")
	}
	g := &grant{
		of: t, names: names{issuer: c.Issuer, name: c.Subject, client: c.id()}, keys: set, grade: grade{
			Audience: slices.Sorted(slices.Values(c.Audience)), Scopes: append(scopesOf(c.Scope), scopesOf(c.SCP)...),
			Issued: timeOf(c.IssuedAt), Expires: c.Expiry.Time().Add(clockLeeway),
		},
	}
	if t.claims {
		g.called = readClaims(all)
	}
	g.principal = newPrincipal("jwt", c.Issuer, "sub", c.Subject, g.client)
	return g, nil
}

// timeOf is a time in a token; zero if the token has none.
func timeOf(d *jwt.NumericDate) time.Time {
	if d == nil {
		return time.Time{}
	}
	return d.Time()
}

// checkType refuses a signed text that calls itself something else than an access token (RFC 8725 section
// 3.11). Many issuers call access tokens plain JWT.
func checkType(h jose.Header) error {
	kind, ok := h.ExtraHeaders[jose.HeaderType]
	if !ok {
		return nil
	}
	text, _ := kind.(string)
	switch strings.TrimPrefix(strings.ToLower(text), "application/") {
	case "jwt", "at+jwt":
		return nil
	}
	return errors.New("the token is no access token")
}

// scopesOf reads a list of scopes: a text with spaces between (RFC 8693), or an array, as some issuers
// have it in scp.
func scopesOf(raw json.RawMessage) []string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return strings.Fields(text)
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	return nil
}

// readClaims returns the claims of a token as the principals of tools name them: CLAIM=VALUE for a text, a number or a
// boolean, and one for each of these in a list. Objects are left out.
func readClaims(all map[string]json.RawMessage) (called []string) {
	add := func(name string, value json.RawMessage) {
		var text string
		switch {
		case json.Unmarshal(value, &text) == nil:
			called = append(called, name+"="+text)
		case len(value) > 0 && value[0] != '{' && value[0] != '[':
			called = append(called, name+"="+string(value))
		}
	}
	for name, value := range all {
		var list []json.RawMessage
		if json.Unmarshal(value, &list) != nil {
			add(name, value)
		}
		for _, one := range list {
			add(name, one)
		}
	}
	return called
}

// refuseWithout refuses a token that lacks one of these scopes or of those that every token needs. Its
// client is told all of them, so that it asks for them at once.
func (g *grant) refuseWithout(scopes []string) *Refusal {
	missing := func(s string) bool { return !slices.Contains(g.Scopes, s) }
	if !slices.ContainsFunc(g.of.scopes, missing) && !slices.ContainsFunc(scopes, missing) {
		return nil
	}
	need := slices.Clone(g.of.scopes)
	for _, s := range scopes {
		if !slices.Contains(need, s) {
			need = append(need, s)
		}
	}
	return challengeWith(http.StatusForbidden, g.of.metadata, "insufficient_scope", "the token has not all scopes that this needs", need)
}
