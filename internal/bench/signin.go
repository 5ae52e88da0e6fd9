package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"taskgate/internal/mcp"
)

// Names of the variants whose clients sign in.
const (
	gatewayKeys = "taskgate, keys"
	gatewayJWT  = "taskgate, jwt"
)

// benchKey is the key of the client, and benchAudience is what its token is for.
const (
	benchKey      = "bench-bench-bench-bench-bench-bench"
	benchAudience = "https://bench.example"
)

// signInConfig adds an upstream for each way to sign in to gatewayConfig.
func (s *stage) signInConfig() string {
	return fmt.Sprintf(`
  - {name: keys, path: /keys, url: "http://%[1]s/mcp", era: modern, defaults: {tasks: never}, auth: {keys: [{principal: bench, sha256: %[2]x}]}}
  - {name: jwt, path: /jwt, url: "http://%[1]s/mcp", era: modern, defaults: {tasks: never}, auth: {jwt: {issuer: "%[3]s", jwks_url: "%[3]s", audiences: ["%[4]s"]}}}
public_url: https://bench.example
`, s.upstream, sha256.Sum256([]byte(benchKey)), s.issuer.url, benchAudience)
}

// issuer is an authorization server as far as the gateway sees it: it has published its key,
// and signed a token that lasts longer than any run.
type issuer struct {
	url   string
	token string
	web   *http.Server
}

func newIssuer() (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private := jose.JSONWebKey{Key: key, KeyID: "bench", Algorithm: string(jose.ES256), Use: "sig"}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{private.Public()}})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	i := &issuer{url: "http://" + listener.Addr().String()}
	if i.token, err = i.sign(private); err != nil {
		_ = listener.Close()
		return nil, err
	}
	i.web = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(keys) })}
	go func() { _ = i.web.Serve(listener) }() // until close
	return i, nil
}

func (i *issuer) sign(key jose.JSONWebKey) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	now := time.Now()
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: i.url, Subject: "bench", Audience: jwt.Audience{benchAudience},
		IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(24 * time.Hour)),
	}).Serialize()
}

func (i *issuer) close() { _ = i.web.Close() }

// signedIn is a plain call at another path of the gateway, by a client that signs in.
func (s *stage) signedIn(name, path, credential string) variant {
	plain := request(s.gateway, mcp.MethodToolsCall, "plain", `"name":"plain","arguments":{}`, false)
	return over(name, s.gateway, answered, by(credential, bytes.Replace(plain, []byte("POST /mcp "), fmt.Appendf(nil, "POST %s ", path), 1)))
}
