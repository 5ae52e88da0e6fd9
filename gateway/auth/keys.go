package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/http"

	"taskgate/gateway/config"
	"taskgate/shim"
)

// The challenges for a client that lacks a good key (Z3, RFC 6750 section 3). Only a client that
// showed a key is told of an error in it.
const (
	challenge        = `Bearer realm="taskgate"`
	challengeInvalid = challenge + `, error="invalid_token", error_description="the key is not known"`
	challengeBroken  = challenge + `, error="invalid_request", error_description="Authorization must be: Bearer KEY"`
)

var (
	noKey      = &Refusal{http.StatusUnauthorized, challenge, "a key is needed: Authorization: Bearer KEY"}
	unknownKey = &Refusal{http.StatusUnauthorized, challengeInvalid, "the key is not known"}
	brokenKey  = &Refusal{http.StatusBadRequest, challengeBroken, "Authorization must be: Bearer KEY"}
)

// keyring knows the configured keys by their hashes.
type keyring struct {
	// byPrefix finds the few candidates that are compared in constant time. The duration of the
	// search reveals at most the beginning of a hash, which leads to no key.
	byPrefix map[uint64][]hashedKey
}

type hashedKey struct {
	hash      [sha256.Size]byte
	principal []string // the name of one
}

func newKeyring(keys []config.BearerKey) (Method, error) {
	k := keyring{byPrefix: make(map[uint64][]hashedKey, len(keys))}
	for i, c := range keys {
		principal, digits := c.Parts()
		hash, err := hex.DecodeString(digits)
		// Without a principal the key would be that of all anonymous callers.
		if err != nil || len(hash) != sha256.Size || principal == "" {
			return nil, fmt.Errorf("keys[%d] needs a principal and a SHA-256 hash", i)
		}
		one := hashedKey{hash: [sha256.Size]byte(hash), principal: []string{principal}}
		k.byPrefix[prefixOf(one.hash)] = append(k.byPrefix[prefixOf(one.hash)], one)
	}
	return k, nil
}

func prefixOf(hash [sha256.Size]byte) uint64 { return binary.BigEndian.Uint64(hash[:]) }

// Identify finds the principal of the key that a request carries. Every request needs one, in any
// session: the id of a session or of a task proves nothing (Z2, Z7).
func (k keyring) Identify(r *http.Request) (Caller, *Refusal) {
	key, found := readBearer(r.Header)
	switch found {
	case absent:
		return Caller{}, noKey
	case broken:
		return Caller{}, brokenKey
	}
	owner := k.owner(key)
	if owner == nil {
		return Caller{}, unknownKey
	}
	return Caller{Principal: shim.Principal{Subject: owner[0]}, names: names{called: owner}}, nil
}

// Recall is Identify: the hashes are in memory.
func (k keyring) Recall(r *http.Request) string {
	c, _ := k.Identify(r)
	return c.Principal.Owner()
}

// owner returns the principal of a key, as its only entry; nil for an unknown key.
func (k keyring) owner(key string) []string {
	hash := sha256.Sum256([]byte(key))
	for _, c := range k.byPrefix[prefixOf(hash)] {
		if subtle.ConstantTimeCompare(c.hash[:], hash[:]) == 1 {
			return c.principal
		}
	}
	return nil
}
