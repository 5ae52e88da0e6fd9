package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/MicahParks/jwkset"
	"github.com/go-jose/go-jose/v4"

	"taskgate/internal/work"
)

var (
	errNoKeys     = errors.New("the keys of the issuer cannot be had")
	errKeyless    = fmt.Errorf("%w: it publishes none", errNoKeys)
	errUnknownKey = errors.New("the issuer has no such key")
)

// issuer knows the keys of an authorization server. They are fetched when they are old, and when a token names
// an unknown key. Anybody can send such a token, so that happens once in fetchFloor at most.
type issuer struct {
	name string
	jwks string // "" is to be found out
	web  fetcher
	keys *fetched[*keySet]
	log  *slog.Logger
	down atomic.Bool // as the log says
}

func newIssuer(name, jwks string, lasting *work.Background, log *slog.Logger) *issuer {
	i := &issuer{name: name, jwks: jwks, web: newFetcher(nil), log: log.With("issuer", name)}
	i.keys = newFetched(i.fetchNow, lasting)
	return i
}

// keySet is the set of keys that an issuer signs with at a time.
type keySet struct {
	keys []jwkset.JWK
	text string // of the set
}

// candidates are the keys that may have signed a token with this header. A key without an id may have signed
// any token, and a token without a key id may be signed with any key.
func (s *keySet) candidates(h jose.Header) (keys []any, named bool) {
	if s == nil {
		return nil, false
	}
	for _, k := range s.keys {
		m := k.Marshal()
		named = named || m.KID == h.KeyID
		if (m.KID == h.KeyID || m.KID == "" || h.KeyID == "") && (m.ALG == "" || string(m.ALG) == h.Algorithm) {
			keys = append(keys, k.Key())
		}
	}
	return keys, named || h.KeyID == "" && len(keys) > 0
}

// findKeys returns the keys that may have signed a token with this header, and their set. It may wait for one
// attempt to fetch keys.
func (i *issuer) findKeys(ctx context.Context, h jose.Header) ([]any, *keySet, error) {
	set, err := i.keys.getAnswer(ctx)
	keys, named := set.candidates(h)
	if !named && (err == nil || !isDefinite(err)) {
		var newer *keySet
		if newer, err = i.keys.renewAnswer(ctx); err == nil {
			set = newer
			keys, _ = set.candidates(h)
		}
	}
	switch {
	case len(keys) > 0:
		return keys, set, nil
	case err != nil && isDefinite(err):
		return nil, nil, errKeyless
	case err != nil, i.down.Load():
		return nil, nil, errNoKeys // the issuer may have this key
	}
	return nil, nil, errUnknownKey
}

// fetchNow gets the current keys.
func (i *issuer) fetchNow(ctx context.Context) (*keySet, error) {
	set, err := i.loadKeys(ctx)
	before, known := i.keys.lastGood()
	switch was := i.down.Swap(err != nil); {
	case err != nil && !was:
		i.log.Warn("the keys of an issuer cannot be fetched; known keys stay valid", "err", err, "known", known)
	case err == nil && (was || !known):
		i.log.Info("the keys of an issuer are known", "keys", len(set.keys))
	}
	if err == nil && known && before.text == set.text { // what is remembered of tokens depends on the set
		return before, nil
	}
	return set, err
}

// loadKeys reads the JWK set (RFC 7517).
func (i *issuer) loadKeys(ctx context.Context) (*keySet, error) {
	defer i.web.client.CloseIdleConnections() // the next time is minutes away
	at := i.jwks
	if at == "" {
		var err error
		if at, err = i.findKeysURL(ctx); err != nil {
			return nil, err
		}
	}
	document, err := i.web.readDocument(ctx, at)
	if err != nil {
		return nil, err
	}
	var all struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(document, &all) != nil {
		return nil, contentError("the keys are no JWK set")
	}
	return newKeySet(readKeys(all.Keys))
}

// readKeys reads keys, and leaves out unreadable ones (RFC 7517 section 5): the other keys stay good. The
// certificates of a key are ignored.
func readKeys(texts []json.RawMessage) (keys []jwkset.JWK) {
	for _, text := range texts {
		var m jwkset.JWKMarshal
		if json.Unmarshal(text, &m) != nil {
			continue
		}
		m.X5C, m.X5T, m.X5TS256, m.X5U = nil, "", "", ""
		k, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{Private: true}, jwkset.JWKValidateOptions{SkipUse: true, SkipKeyOps: true})
		if err == nil {
			keys = append(keys, k)
		}
	}
	return keys
}

// newKeySet takes the public keys for signatures. A set may also hold keys for encryption.
func newKeySet(all []jwkset.JWK) (*keySet, error) {
	set := &keySet{}
	for _, k := range all {
		m := k.Marshal()
		if isPublic(k.Key()) && (m.USE == "" || m.USE == jwkset.UseSig) {
			set.keys = append(set.keys, k)
			text, _ := json.Marshal(m) // it was JSON before
			set.text += string(text)
		}
	}
	if len(set.keys) == 0 {
		return nil, contentError("there is no public key for signatures among the keys")
	}
	return set, nil
}

// isPublic reports whether a key can only verify signatures.
func isPublic(key any) bool {
	switch key.(type) {
	case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
}

// findKeysURL finds the address of the keys in the metadata of an authorization server (RFC 8414), or of OpenID
// Connect discovery, which has another place for it if the issuer has a path.
func (i *issuer) findKeysURL(ctx context.Context) (string, error) {
	var failed []error
	for _, at := range metadataURLs(i.name) {
		document, err := i.web.readDocument(ctx, at)
		if err == nil {
			var keys string
			if keys, err = i.readMetadata(document); err == nil {
				return keys, nil
			}
		}
		failed = append(failed, fmt.Errorf("%s: %w", at, err))
	}
	return "", errors.Join(failed...)
}

// metadataURLs are the places at which clients of MCP look, in their order.
func metadataURLs(issuer string) []string {
	u, _ := url.Parse(issuer) // Validate has checked it, or mayAsk
	origin, path := u.Scheme+"://"+u.Host, strings.TrimRight(u.EscapedPath(), "/")
	urls := []string{origin + "/.well-known/oauth-authorization-server" + path, origin + "/.well-known/openid-configuration" + path}
	if path != "" {
		urls = append(urls, origin+path+"/.well-known/openid-configuration")
	}
	return urls
}

// readMetadata reads metadata. It must be that of the issuer (RFC 8414 section 3.3), and name an address of keys
// with https if the issuer has that.
func (i *issuer) readMetadata(document []byte) (keys string, err error) {
	var metadata map[string]any
	if err := json.Unmarshal(document, &metadata); err != nil {
		return "", contentError("not metadata")
	}
	if metadata["issuer"] != i.name {
		return "", contentError("the metadata is that of another issuer")
	}
	keys, _ = metadata["jwks_uri"].(string)
	u, err := url.Parse(keys)
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !strings.HasPrefix(i.name, "http://")) {
		return "", contentError("the metadata has no jwks_uri with https")
	}
	return keys, nil
}
