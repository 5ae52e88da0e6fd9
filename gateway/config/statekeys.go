package config

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
)

// StateKey is one key that seals and opens the states that clients hold: 32 random bytes in Base64,
// as "taskgate state-key" prints them.
type StateKey string

// stateKeySize is the length of a key, in bytes.
const stateKeySize = 32

// Secret returns the bytes of the key, or an error that keeps the text secret.
func (k StateKey) Secret() ([]byte, error) {
	secret, err := base64.StdEncoding.DecodeString(string(k))
	if err != nil || len(secret) != stateKeySize {
		return nil, fmt.Errorf("a key is %d random bytes in Base64, as \"taskgate state-key\" prints them", stateKeySize)
	}
	return secret, nil
}

// StateKeyID names a key, readably, in the states that are sealed with it. It is part of the hash
// of the key.
func StateKeyID(secret []byte) string {
	hash := sha256.Sum256(secret)
	return base64.RawURLEncoding.EncodeToString(hash[:9])
}

// stateKeys checks each key, and that all differ: a repeated key would be replaced by itself.
func (p *problems) stateKeys(keys []StateKey) {
	seen := map[string]int{}
	for i, k := range keys {
		at := fmt.Sprintf("state_keys[%d]", i)
		secret, err := k.Secret()
		if err != nil {
			p.add(at, "%s", err)
			continue
		}
		if first, twice := seen[string(secret)]; twice {
			p.add(at, "this key is already that of state_keys[%d]", first)
		}
		seen[string(secret)] = i
	}
}
