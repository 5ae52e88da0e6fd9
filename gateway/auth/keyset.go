package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// key is a public key of an issuer.
type key = jose.JSONWebKey

// keySet is what an issuer signs with at a time. A nil set is empty.
type keySet struct {
	keys []key
	sum  [sha256.Size]byte // of the document
}

// key returns the key of that id. A token need not name one where there is only one.
func (s *keySet) key(id string) *key {
	if s == nil {
		return nil
	}
	if id == "" && len(s.keys) == 1 {
		return &s.keys[0]
	}
	if at := slices.IndexFunc(s.keys, func(k key) bool { return k.KeyID == id && id != "" }); at >= 0 {
		return &s.keys[at]
	}
	return nil
}

func (s *keySet) same(other *keySet) bool { return other != nil && s.sum == other.sum }

func (s *keySet) size() int {
	if s == nil {
		return 0
	}
	return len(s.keys)
}

// parseKeys reads a JWK set (RFC 7517). What is no public key for signatures is left out: sets
// hold keys for encryption, and of kinds that are not known here.
func parseKeys(document []byte) (*keySet, error) {
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(document, &raw); err != nil {
		return nil, contentError("the keys are no JWK set")
	}
	set := &keySet{sum: sha256.Sum256(document)}
	for _, one := range raw.Keys {
		var k key
		if k.UnmarshalJSON(one) == nil && k.Valid() && k.IsPublic() && (k.Use == "" || k.Use == "sig") {
			set.keys = append(set.keys, k)
		}
	}
	if len(set.keys) == 0 {
		return nil, contentError("there is no public key for signatures among the keys")
	}
	return set, nil
}

// keySource fetches the keys of an issuer.
type keySource struct {
	issuer string
	jwks   string // "" is to be found out
	fetcher
}

func newKeySource(issuer, jwks string) keySource {
	return keySource{issuer: issuer, jwks: jwks, fetcher: newFetcher(nil)}
}

// fetch returns the keys as they are now.
func (s keySource) fetch(ctx context.Context) (*keySet, error) {
	defer s.client.CloseIdleConnections() // the next time is minutes away
	at := s.jwks
	if at == "" {
		var err error
		if at, err = s.discover(ctx, "jwks_uri"); err != nil {
			return nil, err
		}
	}
	document, err := s.get(ctx, at)
	if err != nil {
		return nil, err
	}
	return parseKeys(document)
}

// discover finds an endpoint of the issuer, by its name in the metadata of an authorization
// server (RFC 8414), or of OpenID Connect discovery, which has another place for it if the
// issuer has a path.
func (s keySource) discover(ctx context.Context, name string) (string, error) {
	var failed []error
	for _, at := range metadataURLs(s.issuer) {
		document, err := s.get(ctx, at)
		if err == nil {
			var endpoint string
			if endpoint, err = s.endpoint(document, name); err == nil {
				return endpoint, nil
			}
		}
		failed = append(failed, fmt.Errorf("%s: %w", at, err))
	}
	return "", errors.Join(failed...)
}

// metadataURLs are the places that clients of MCP look at, in their order.
func metadataURLs(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil
	}
	origin, path := u.Scheme+"://"+u.Host, strings.TrimRight(u.EscapedPath(), "/")
	urls := []string{origin + "/.well-known/oauth-authorization-server" + path, origin + "/.well-known/openid-configuration" + path}
	if path != "" {
		urls = append(urls, origin+path+"/.well-known/openid-configuration")
	}
	return urls
}

// endpoint reads metadata. It must be that of the issuer (RFC 8414 section 3.3), and must not
// lead to where others could answer.
func (s keySource) endpoint(document []byte, name string) (string, error) {
	var metadata map[string]any
	if err := json.Unmarshal(document, &metadata); err != nil {
		return "", contentError("not metadata")
	}
	if metadata["issuer"] != s.issuer {
		return "", contentError("the metadata is that of another issuer")
	}
	endpoint, _ := metadata[name].(string)
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !strings.HasPrefix(s.issuer, "http://")) {
		return "", contentError("the metadata has no " + name + " with https")
	}
	return endpoint, nil
}
