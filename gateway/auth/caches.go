package auth

import (
	"maps"
	"slices"
	"sync"

	"taskgate/gateway/config"
	"taskgate/gateway/sealed"
)

// Credentials remember the tokens that callers have shown, for requests to a server that are made
// outside of a client's request. They stay in memory, and out of logs. Verified tokens are remembered,
// and other tokens while a call waits for them. Only upstreams with passthrough have any.
type Credentials struct {
	keys     *sealed.Keyring
	refusals Refusals

	mu        sync.Mutex
	upstreams map[string]*tokenCache
}

// NewCredentials makes Credentials for the upstreams of [New]. keys seal the tokens that go to other
// replicas; with nil tokens stay here. refusals are those of all replicas; nil for a single replica.
func NewCredentials(keys *sealed.Keyring, refusals Refusals) *Credentials {
	return &Credentials{keys: keys, refusals: refusals}
}

// of returns the tokens of each upstream of a configuration: the known ones, and empty ones for new
// upstreams.
func (c *Credentials) of(cfg *config.Config) map[string]*tokenCache {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[string]*tokenCache{}
	for _, u := range cfg.Upstreams {
		if cfg.AuthOf(u).Passthrough == nil {
			continue
		}
		if next[u.Name] = c.upstreams[u.Name]; next[u.Name] == nil {
			next[u.Name] = newTokenCache(MaxTokens, forgetAfter, c.keys)
			next[u.Name].upstream, next[u.Name].refusals = u.Name, c.refusals
		}
	}
	return next
}

func (c *Credentials) replaceTokens(upstreams map[string]*tokenCache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.upstreams = upstreams
}

func (c *Credentials) forgetUnused() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.upstreams))
	c.mu.Unlock()
	for _, tokens := range all {
		tokens.forgetExpired()
	}
}
