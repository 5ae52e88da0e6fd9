package config

import (
	"encoding/base64"
	"fmt"
)

// StateKey is one key that seals and opens the states that clients hold.
type StateKey struct {
	// ID names the key in the states that are sealed with it, where it can be
	// read. It must not be used again for another key.
	ID string `yaml:"id" pattern:"^[A-Za-z0-9_-]{1,32}$" says:"letters, digits, '_' and '-', at most 32" required:"true"`

	// Key is 32 random bytes in Base64, as "taskgate state-key" prints them.
	Key string `yaml:"key"`

	// KeyFile is a file that holds the key. It is used instead of key; giving both
	// is a mistake.
	KeyFile string `yaml:"key_file"`
}

// stateKeySize is the length of a key, in bytes.
const stateKeySize = 32

// Secret returns the bytes of the key, and an error where it is none; the text of
// the error does not show it.
func (k StateKey) Secret() ([]byte, error) {
	secret, err := base64.StdEncoding.DecodeString(k.Key)
	if err != nil || len(secret) != stateKeySize {
		return nil, fmt.Errorf("a key is %d random bytes in Base64, as \"taskgate state-key\" prints them", stateKeySize)
	}
	return secret, nil
}

// stateKeys checks the keys one by one, and that no two have one name or are one
// key by two names: that would be replaced by itself.
func (p *problems) stateKeys(keys []StateKey) {
	ids, secrets := map[string]int{}, map[string]int{}
	for i := range keys {
		k, at := &keys[i], fmt.Sprintf("state_keys[%d]", i)
		p.fields(at, k)
		if first, twice := ids[k.ID]; twice && k.ID != "" {
			p.add(at+".id", "this id is already that of state_keys[%d]", first)
		} else {
			ids[k.ID] = i
		}
		if k.Key == "" {
			p.addFor([]string{at + ".key", at + ".key_file"}, "key or key_file is required")
			continue
		}
		secret, err := k.Secret()
		if err != nil {
			p.add(at+".key", "%s", err)
			continue
		}
		if first, twice := secrets[string(secret)]; twice {
			p.add(at+".key", "this key is already that of state_keys[%d]", first)
		}
		secrets[string(secret)] = i
	}
}
