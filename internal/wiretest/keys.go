package wiretest

import (
	"strings"

	"taskgate/gateway/config"
)

// The keys of the tests: alice is changing hers.
const (
	AliceKey  = "alice-0123456789abcdef"
	AliceNext = "alice-fedcba9876543210="
	BobKey    = "bob+0123456789/abcdef"
)

// KeyOf is a key as the configuration has it.
func KeyOf(principal, key string) config.BearerKey {
	return config.BearerKey{Principal: principal, SHA256: config.HashKey(key)}
}

// WithKeys lets in alice and bob, and nobody else.
func WithKeys(c *config.Config) {
	c.Auth.Keys = []config.BearerKey{KeyOf("alice", AliceKey), KeyOf("alice", AliceNext), KeyOf("bob", BobKey)}
	c.Auth.Keys[0].SHA256 = strings.ToUpper(c.Auth.Keys[0].SHA256)
}
