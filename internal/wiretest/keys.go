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
	return config.BearerKey(principal + ":" + config.HashKey(key))
}

// WithKeys lets in alice and bob, and nobody else.
func WithKeys(c *config.Config) {
	upper := config.BearerKey("alice:" + strings.ToUpper(config.HashKey(AliceKey)))
	c.Auth.Keys = []config.BearerKey{upper, KeyOf("alice", AliceNext), KeyOf("bob", BobKey)}
}
