package gateway

import (
	"fmt"

	"taskgate/gateway/config"
	"taskgate/gateway/sealed"
)

// StateKeys makes the keyring of the configuration. If that has no keys, a gateway with a store of
// its own makes one; any other gateway has no keyring (nil), since the replica that the client
// comes back to has to open its state.
func StateKeys(c *config.Config) (*sealed.Keyring, error) {
	if len(c.StateKeys) == 0 {
		if !c.OwnsStore() {
			return nil, nil
		}
		return sealed.Generate()
	}
	keys := make([]sealed.Key, len(c.StateKeys))
	for i, k := range c.StateKeys {
		secret, err := k.Secret()
		if err != nil {
			return nil, fmt.Errorf("state_keys[%d]: %w", i, err)
		}
		keys[i] = sealed.Key{ID: config.StateKeyID(secret), Secret: secret}
	}
	return sealed.New(keys...)
}
