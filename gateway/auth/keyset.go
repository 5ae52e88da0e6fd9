package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
)

// maxDocument bounds what an issuer may answer, in bytes.
const maxDocument = 1 << 20

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
		return nil, errors.New("the keys are no JWK set")
	}
	set := &keySet{sum: sha256.Sum256(document)}
	for _, one := range raw.Keys {
		var k key
		if k.UnmarshalJSON(one) == nil && k.Valid() && k.IsPublic() && (k.Use == "" || k.Use == "sig") {
			set.keys = append(set.keys, k)
		}
	}
	if len(set.keys) == 0 {
		return nil, errors.New("there is no public key for signatures among the keys")
	}
	return set, nil
}

// keySource fetches the keys of an issuer.
type keySource struct {
	issuer string
	jwks   string // "" is to be found out
	client *http.Client
}

func newKeySource(issuer, jwks string) keySource {
	return keySource{issuer: issuer, jwks: jwks, client: &http.Client{
		Timeout: fetchTimeout,
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: fetchTimeout, ResponseHeaderTimeout: fetchTimeout,
			ForceAttemptHTTP2: true,
		},
		// The keys are those that are at an address which the operator or the issuer names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// fetch returns the keys as they are now.
func (s keySource) fetch(ctx context.Context) (*keySet, error) {
	defer s.client.CloseIdleConnections() // the next time is minutes away
	at := s.jwks
	if at == "" {
		var err error
		if at, err = s.discover(ctx); err != nil {
			return nil, err
		}
	}
	document, err := s.get(ctx, at)
	if err != nil {
		return nil, err
	}
	return parseKeys(document)
}

// discover finds where the keys are: by the metadata of an authorization server (RFC 8414), or
// by OpenID Connect discovery, which has another place for it if the issuer has a path.
func (s keySource) discover(ctx context.Context) (string, error) {
	var failed []error
	for _, at := range metadataURLs(s.issuer) {
		document, err := s.get(ctx, at)
		if err == nil {
			var keys string
			if keys, err = s.keysOf(document); err == nil {
				return keys, nil
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

// keysOf reads metadata. It must be that of the issuer (RFC 8414 section 3.3), and must not
// lead to where others could answer.
func (s keySource) keysOf(document []byte) (string, error) {
	var metadata struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(document, &metadata); err != nil {
		return "", errors.New("not metadata")
	}
	if metadata.Issuer != s.issuer {
		return "", errors.New("the metadata is that of another issuer")
	}
	u, err := url.Parse(metadata.Keys)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !strings.HasPrefix(s.issuer, "http://")) {
		return "", errors.New("the metadata has no jwks_uri with https")
	}
	return metadata.Keys, nil
}

// get reads a document. Errors do not repeat what was answered.
func (s keySource) get(ctx context.Context, at string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	resp, err := s.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the status is %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > maxDocument:
		return nil, fmt.Errorf("the document is larger than %d bytes", maxDocument)
	}
	return body, nil
}
