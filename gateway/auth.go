package gateway

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/wire"
	"taskgate/shim"
)

// What a client is told with 401 and 400 (Z3, RFC 6750 section 3). Only one that
// showed a token hears of an error in it.
const (
	challenge        = `Bearer realm="taskgate"`
	challengeInvalid = challenge + `, error="invalid_token", error_description="the key is not known"`
	challengeBroken  = challenge + `, error="invalid_request", error_description="Authorization must be: Bearer KEY"`
)

const (
	headerAuthorization = "Authorization"
	headerAuthenticate  = "Www-Authenticate"
)

// keyring knows the configured keys by their hashes. The zero keyring lets
// everybody in, anonymously (design.md 0.7).
type keyring struct {
	// byPrefix finds the few candidates that are compared in constant time. How
	// long the search takes tells at most the beginning of a hash, which leads to
	// no key.
	byPrefix map[uint64][]hashedKey
}

type hashedKey struct {
	hash      [sha256.Size]byte
	principal string
}

func newKeyring(a config.Auth) (keyring, error) {
	if !a.Required() {
		return keyring{}, nil
	}
	k := keyring{byPrefix: make(map[uint64][]hashedKey, len(a.Keys))}
	for i, c := range a.Keys {
		hash, err := hex.DecodeString(c.SHA256)
		// Without a principal the key would be that of everybody anonymous.
		if err != nil || len(hash) != sha256.Size || c.Principal == "" {
			return keyring{}, fmt.Errorf("auth.keys[%d] needs a principal and a SHA-256 hash", i)
		}
		one := hashedKey{hash: [sha256.Size]byte(hash), principal: c.Principal}
		k.byPrefix[prefixOf(one.hash)] = append(k.byPrefix[prefixOf(one.hash)], one)
	}
	return k, nil
}

func prefixOf(hash [sha256.Size]byte) uint64 { return binary.BigEndian.Uint64(hash[:]) }

// owner returns the principal of a key.
func (k keyring) owner(token string) (string, bool) {
	hash := sha256.Sum256([]byte(token))
	for _, c := range k.byPrefix[prefixOf(hash)] {
		if subtle.ConstantTimeCompare(c.hash[:], hash[:]) == 1 {
			return c.principal, true
		}
	}
	return "", false
}

// authenticated is a handler that knows who asks. That it takes a principal is
// what keeps a new route from forgetting to ask.
type authenticated func(w http.ResponseWriter, r *http.Request, p shim.Principal)

// authenticate serves a request in the name of whose key it carries. That is
// asked of every request, whatever session it names: to hold the id of a session
// or of a task proves nothing (Z2, Z7). The key ends here: what goes upstream is
// written anew, with the credentials of the configuration (Z1).
func (k keyring) authenticate(next authenticated) http.HandlerFunc {
	if k.byPrefix == nil {
		return func(w http.ResponseWriter, r *http.Request) { next(w, r, shim.Principal{}) }
	}
	return func(w http.ResponseWriter, r *http.Request) {
		token, refusal := bearer(r.Header)
		if refusal != nil {
			refusal.write(w, r)
			return
		}
		owner, ok := k.owner(token)
		if !ok {
			unknownKey.write(w, r)
			return
		}
		next(w, r, shim.Principal{Subject: owner})
	}
}

// refusal is what a request without a good key gets.
type refusal struct {
	status    int
	challenge string
	message   string
}

var (
	noKey      = &refusal{http.StatusUnauthorized, challenge, "a key is needed: Authorization: Bearer KEY"}
	unknownKey = &refusal{http.StatusUnauthorized, challengeInvalid, "the key is not known"}
	brokenKey  = &refusal{http.StatusBadRequest, challengeBroken, "Authorization must be: Bearer KEY"}
)

// write answers before any of the body is read.
func (f *refusal) write(w http.ResponseWriter, r *http.Request) {
	leaveUnread(w, r)
	w.Header().Set(headerAuthenticate, f.challenge)
	wire.WriteFailure(w, "", wire.Refused(f.status, f.message))
}

// leaveUnread is called before an answer to a request whose body is not read. Left to itself
// the server would first wait for the rest of it, for as long as a stranger likes; without time
// to read, it keeps the connection only if the body has arrived already.
func leaveUnread(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	}
}

// bearer reads the key out of the one header that may carry it; one in the URL
// is not looked for (Z2). Another scheme than Bearer is no key at all, and none of
// RFC 6750's errors.
func bearer(h http.Header) (token string, _ *refusal) {
	values := h[headerAuthorization]
	switch len(values) {
	case 0:
		return "", noKey
	case 1:
	default: // which one did a proxy in front look at?
		return "", brokenKey
	}
	scheme, token, _ := strings.Cut(wire.TrimOWS(values[0]), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", noKey
	}
	if token = strings.TrimLeft(token, " "); !config.ValidKey(token) {
		return "", brokenKey
	}
	return token, nil
}
