package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

// signer makes a key for an algorithm.
func signer(t *testing.T, algorithm string) (key crypto.Signer) {
	t.Helper()
	var err error
	switch algorithm {
	case "ES256":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ES384":
		key, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ES512":
		key, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "EdDSA":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestAlgorithms: a token may be signed with each algorithm, whether or not its key says for which
// it is, and with none that its key is not for.
func TestAlgorithms(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	long := signer(t, "RS256")
	for _, algorithm := range algorithms {
		private := long
		if algorithm[0] == 'E' {
			private = signer(t, string(algorithm))
		}
		for _, of := range []string{"", string(algorithm), "HS256"} {
			k := jose.JSONWebKey{Key: private, KeyID: "k", Algorithm: of}
			set := wiretest.Must(json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{k.Public()}}))(t)
			token := wiretest.SignedToken(t, algorithm, &jose.JSONWebKey{Key: k.Key, KeyID: "k"}, i.Claims("alice", nil))
			source := issuerAt(i.URL, "")
			source.keys.fetch = func(context.Context) (*keySet, error) { return keysIn(t, set), nil }
			m := wiretest.Must(newTokens(wiretest.WithTokens(config.Default(), i), source, "x", false, slog.New(slog.DiscardHandler)))(t)
			if _, refusal := m.Identify(request("Bearer " + token)); (refusal == nil) != (of != "HS256") {
				t.Errorf("%s by a key for %q: %v", algorithm, of, refusal)
			}
		}
	}
}
