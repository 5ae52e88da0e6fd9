package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Auth says who may call. Without it everybody who can connect is served, as
// nobody in particular: a task's id is then what gives access to it.
type Auth struct {
	// Keys are the bearer keys that let a client in, by the header
	// "Authorization: Bearer KEY". A principal may have several, so that a key
	// can be replaced without a moment in which none works.
	Keys []BearerKey `yaml:"keys"`
}

// BearerKey is one key of one principal.
type BearerKey struct {
	// Principal is who calls with the key: the owner of the tasks and sessions
	// made with it, which nobody else sees. Renaming a principal orphans them.
	Principal string `yaml:"principal" pattern:"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$" says:"letters, digits, '.', '_', '@', '+' and '-', beginning with a letter or digit, at most 128" required:"true"`

	// SHA256 is the hash of the key, in hexadecimal digits, as printed by
	// "taskgate hash-key". The key itself is not in the configuration. It must be
	// long and random, since short ones can be guessed from their hash:
	// "openssl rand -hex 32" makes a good one.
	SHA256 string `yaml:"sha256" pattern:"^[0-9A-Fa-f]{64}$" says:"the 64 hexadecimal digits of a SHA-256 hash, as \"taskgate hash-key\" prints them" required:"true"`
}

// Required reports whether a client has to say who it is.
func (a Auth) Required() bool { return len(a.Keys) > 0 }

// ValidKey reports whether a client can present key as a bearer token (RFC 6750
// section 2.1): letters, digits and -._~+/ with any number of = at the end.
func ValidKey(key string) bool {
	body := strings.TrimRight(key, "=")
	for i := range len(body) {
		c := body[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~+/", c) >= 0) {
			return false
		}
	}
	return body != ""
}

// HashKey returns the hash of a bearer key as [BearerKey] holds it.
func HashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// hashOfNothing is what hashing gives where a key was to come from a variable or
// a file, and neither held anything.
const hashOfNothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// auth checks the keys one by one and against each other. One key of two
// principals would make one of them the other.
func (p *problems) auth(a *Auth) {
	seen := map[string]int{}
	for i := range a.Keys {
		k, at := &a.Keys[i], fmt.Sprintf("auth.keys[%d]", i)
		p.fields(at, k)
		hash := strings.ToLower(k.SHA256)
		if first, ok := seen[hash]; ok && hash != "" {
			p.add(at+".sha256", "this key is already that of keys[%d]", first)
			continue
		}
		if hash == hashOfNothing {
			p.add(at+".sha256", "this is the hash of nothing: the key was empty")
		}
		seen[hash] = i
	}
}

// checkAuth reports an auth without keys. To read it as "nobody has to say who he
// is" would open the gateway to everybody when the last entry of a list is
// commented out.
func (s *source) checkAuth(a Auth) {
	if _, given := s.at["auth"]; given && !a.Required() {
		s.addProblem(problem{
			paths:   []string{"auth.keys", "auth"},
			message: "no keys: give at least one, or leave auth out to let everybody in",
			onKey:   true,
		})
	}
}
