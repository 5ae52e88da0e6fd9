package auth

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"taskgate/gateway/config"
)

const (
	// lookAgain is how often whoever waits for a token looks by itself whether there is one.
	lookAgain = 30 * time.Second
	// forgetEvery is how often tokens are looked through for those that are to be forgotten.
	forgetEvery = time.Minute
)

// passedOn is what a request under passthrough came with: it goes on to the server as long as the
// request is served.
type passedOn struct {
	authorization string    // "" for an anonymous one
	until         time.Time // when that expires; zero where that is not known
	over          atomic.Bool
}

func (v *passedOn) good(now time.Time) bool { return v.until.IsZero() || now.Before(v.until) }

// Authorization is the value of the header that the request came with, if it goes on to the
// server; "" for every other way to sign in than passthrough, and for an anonymous request.
func (c Caller) Authorization() string {
	if c.request == nil {
		return ""
	}
	return c.request.authorization
}

// Shows reports whether the server decides about the caller: what it came with, if anything,
// goes on to the server.
func (c Caller) Shows() bool { return c.request != nil }

// Here reports whether the request is still being served: its client is there to be told what the
// server says of its token.
func (c Caller) Here() bool { return c.request != nil && !c.request.over.Load() }

// Leave says that the request has been answered. What is asked of the server on its behalf
// after that has the newest token of the caller, and not the one that it came with.
func (c Caller) Leave() {
	if c.request != nil {
		c.request.over.Store(true)
	}
}

// Credentials have the newest Authorization of each principal, for what is asked of a server
// when no request is there that came with one: a cancellation, an answer, the next look at a
// call. They are in memory only, and never in a log. Upstreams
// without passthrough have none.
type Credentials struct {
	upstreams map[string]*tokenCaches
}

// NewCredentials makes those of a configuration.
func NewCredentials(c *config.Config) *Credentials {
	all := &Credentials{upstreams: map[string]*tokenCaches{}}
	for _, u := range c.Upstreams {
		if c.AuthOf(u).Passthrough != nil {
			all.upstreams[u.Name] = &tokenCaches{newTokenCache(), newTokenCache()}
		}
	}
	return all
}

// of is where those of a principal are; nil for an upstream without passthrough.
func (c *Credentials) of(upstream, subject string) *tokenCache {
	switch p := c.upstreams[upstream]; {
	case p == nil:
		return nil
	case strings.HasPrefix(subject, unverifiedPrefix):
		return p.unverified
	default:
		return p.known
	}
}

// Outgoing returns the header Authorization of a request to the server of an upstream, on
// behalf of the principal of this subject ("" for an anonymous one). In the course of a request
// of that principal it is what the request came with, until that expires, else the newest that
// this replica has seen. It reports false where there is none that is good: the upstream has
// another way to sign in, the principal has not been seen here, or all that is left has expired.
// The request's own is returned then all the same, since without one the server would take the
// principal for nobody.
func (c *Credentials) Outgoing(ctx context.Context, upstream, subject string) (authorization string, ok bool) {
	p := c.of(upstream, subject)
	if p == nil {
		return "", false
	}
	own, good := "", false
	if caller, is := CallerOf(ctx); is && caller.request != nil && caller.Principal.Owner() == subject {
		own, good = caller.request.authorization, caller.request.good(time.Now())
		if good && caller.Here() {
			return own, true
		}
	}
	if subject == "" {
		return "", true
	}
	if authorization, _, ok = p.newest(subject); ok {
		return authorization, true
	}
	return own, good
}

// Wait waits until Outgoing has something for this principal, or returns why ctx ended. It
// calls waits once if that takes a while. The next request of the principal at the
// upstream ends it.
func (c *Credentials) Wait(ctx context.Context, upstream, subject string, waits func()) error {
	p := c.of(upstream, subject)
	if p == nil || subject == "" {
		return nil
	}
	if _, ok := c.Outgoing(ctx, upstream, subject); ok {
		return nil
	}
	for told := false; ; told = true {
		came := p.await(subject)
		if came == nil {
			return nil
		}
		if !told {
			waits()
		}
		again := time.NewTimer(lookAgain)
		// The next request of the principal at this replica wakes it; it looks by itself each 30 s (lookAgain).
		select {
		case <-came:
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return context.Cause(ctx)
		}
		again.Stop()
	}
}

// tokenCaches are those of one upstream. Anybody can show tokens that cannot be verified, as many as
// they like: these take no room from those of callers who are known.
type tokenCaches struct{ known, unverified *tokenCache }

// tokenCache has the newest Authorization of each principal at one upstream. It is bounded: the one
// that was not used for longest goes first.
type tokenCache struct {
	forget time.Duration

	mu      sync.Mutex
	entries *simplelru.LRU[string, *cachedToken] // by subject
}

// cachedToken is the newest of a principal. One without an authorization is only waited for.
type cachedToken struct {
	authorization string
	until         time.Time // when it expires; zero where that is not known
	used          time.Time
	came          chan struct{} // closed when there is a new one; nil while nobody waits
}

func (s *cachedToken) good(now time.Time) bool {
	return s != nil && s.authorization != "" && (s.until.IsZero() || now.Before(s.until))
}

// forgetAfter is for how long the newest token of a caller is kept after its last use. Tasks that run,
// a day at most by default, need it to ask the server something in the caller's name.
const forgetAfter = 24 * time.Hour

func newTokenCache() *tokenCache {
	entries, _ := simplelru.NewLRU[string, *cachedToken](MaxTokens, nil) // fails for no size only
	return &tokenCache{forget: forgetAfter, entries: entries}
}

// put notes what a principal has shown just now. Of two that expire, the one that lasts
// longer is the newer one: a client may still use the old one for a moment.
func (p *tokenCache) put(subject, authorization string, until time.Time) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.entries.Get(subject)
	if !ok {
		s = &cachedToken{}
		p.entries.Add(subject, s)
	}
	s.used = now
	if s.good(now) && !until.IsZero() && until.Before(s.until) {
		return
	}
	s.authorization, s.until = authorization, until
	if s.came != nil {
		close(s.came)
		s.came = nil
	}
}

// newest returns what a principal has shown last, if it is good still, and until when.
func (p *tokenCache) newest(subject string) (authorization string, until time.Time, ok bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s, _ := p.entries.Get(subject)
	if !s.good(now) {
		return "", time.Time{}, false
	}
	s.used = now
	return s.authorization, s.until, true
}

// await returns what is closed when a principal shows something; nil where it has already.
func (p *tokenCache) await(subject string) <-chan struct{} {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.entries.Get(subject)
	if s.good(now) {
		return nil
	}
	if !ok {
		s = &cachedToken{}
		p.entries.Add(subject, s)
	}
	s.used = now
	if s.came == nil {
		s.came = make(chan struct{})
	}
	return s.came
}

// tidy forgets what was not used for long, and what has expired.
func (p *tokenCache) tidy() {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, subject := range p.entries.Keys() {
		s, _ := p.entries.Peek(subject)
		if s.came == nil && (!s.good(now) || now.Sub(s.used) >= p.forget) {
			p.entries.Remove(subject)
		}
	}
}
