package auth

import (
	"maps"
	"slices"
	"sync"

	"taskgate/gateway/config"
	"taskgate/gateway/sealed"
)

// Credentials remember the tokens that callers have shown, for what is asked of a server when no
// request is there that came with one. They are in memory only, and never in a log. Only verified tokens
// are remembered, and others while a call waits for them. Upstreams without passthrough have none.
type Credentials struct {
	keys     *sealed.Keyring
	refusals Refusals

	mu        sync.Mutex
	upstreams map[string]*tokenCache
}

// NewCredentials makes those of a configuration. keys seal the tokens that go to other replicas; nil
// for none that go. refusals are those of all replicas; nil for one that is alone.
func NewCredentials(c *config.Config, keys *sealed.Keyring, refusals Refusals) *Credentials {
	all := &Credentials{keys: keys, refusals: refusals}
	all.upstreams = all.of(c)
	return all
}

// of returns the tokens of each upstream of a configuration, those that are known already and new
// ones.
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

// replaceTokens takes these in place of those before.
func (c *Credentials) replaceTokens(upstreams map[string]*tokenCache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.upstreams = upstreams
}

// forgetUnused forgets tokens that nobody uses.
func (c *Credentials) forgetUnused() {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.upstreams))
	c.mu.Unlock()
	for _, tokens := range all {
		tokens.forgetExpired()
	}
}
