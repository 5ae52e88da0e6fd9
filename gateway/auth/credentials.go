package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/sealed"
	"taskgate/internal/work"
	"taskgate/shim"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	// lookAgain is how often a call that waits for a token looks by itself for one, and how long it waits at first
	// before it asks the server again with a refused one.
	lookAgain = 30 * time.Second
	// forgetEvery is the time between two searches for tokens to forget.
	forgetEvery = time.Minute
	// forgetAfter is how long the tokens of an idle owner are kept.
	forgetAfter = 24 * time.Hour
	// mostTokens bounds the remembered tokens of one owner, from its devices and from refreshes.
	mostTokens = 8
	// signInWait is how long a call waits for its owner to sign in again.
	signInWait = 15 * time.Minute
)

// errNotSignedIn ends a call whose owner stays away.
var errNotSignedIn = errors.New("its owner did not sign in again in time")

// grade is what a token is good for, as its issuer says. It is stored with a call, so that another replica
// knows which tokens may stand in for that of the call.
type grade struct {
	Owner    string    `json:"owner"`
	Client   bool      `json:"client,omitempty"` // the client that the token was given to is known
	Hash     string    `json:"hash"`             // of the token, with a key
	Audience []string  `json:"aud,omitempty"`
	Scopes   []string  `json:"scope,omitempty"`
	Issued   time.Time `json:"iat,omitzero"`
	Expires  time.Time `json:"exp,omitzero"`
}

// standsIn reports whether a token of this grade may take the place of one of the other: it has the same owner
// (an issuer, a subject and a client), the same audience, and at least the same scopes, and it is newer. An
// owner with an unknown client may be several clients of one user.
func (g grade) standsIn(other grade) bool {
	return g.Owner == other.Owner && g.Client && !other.Issued.IsZero() && g.Issued.After(other.Issued) &&
		slices.Equal(g.Audience, other.Audience) &&
		!slices.ContainsFunc(other.Scopes, func(s string) bool { return !slices.Contains(g.Scopes, s) })
}

// shown is a token as its client shows it.
type shown struct {
	grade
	authorization string
	verified      bool
	standing      *standing
}

// isGood reports whether the token may go out with requests that the gateway makes for the client.
func (t *shown) isGood() bool { return t != nil && !t.standing.isRefusedHere() && !t.hasExpired() }

func (t *shown) hasExpired() bool { return !t.Expires.IsZero() && !time.Now().Before(t.Expires) }

// Represent returns what signs in a call that this replica has taken over. description comes from
// Credential.Describe. It returns nil for an upstream without passthrough.
func (c *Credentials) Represent(upstreamName, description string) *Credential {
	c.mu.Lock()
	p := c.upstreams[upstreamName]
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	cred := &Credential{from: p}
	cred.alone.Store(true)
	_ = json.Unmarshal([]byte(description), &cred.need) // without a description, no token is good
	return cred
}

// passedOn is what a request under passthrough came with.
type passedOn struct {
	own        *shown
	credential *Credential
	invalid    *Refusal
	noTasks    bool // whether its token is refused or not
}

// Credential signs in the requests to the server that belong to this one; nil for other ways to sign in than
// passthrough. challenge makes what the client sees of a 401 or 403 of the server.
func (c Caller) Credential(challenge func(status int, values []string) []string) *Credential {
	if c.request == nil {
		return nil
	}
	c.request.credential.challenge = challenge
	return c.request.credential
}

// Shows reports whether the server decides about the caller: its credentials, if any, go on to the server.
func (c Caller) Shows() bool { return c.request != nil }

// Signed reports whether the caller came with credentials that go on to the server.
func (c Caller) Signed() bool { return c.request != nil && c.request.own.authorization != "" }

// IsOpaque reports whether the caller has shown a token whose owner only the server knows.
func (c Caller) IsOpaque() bool { return c.Signed() && !c.request.own.verified }

// IsStranger reports whether anybody may have made up the caller: only the server can tell who it is, and has yet to take
// a call with its token.
func (c Caller) IsStranger() bool { return c.request != nil && !c.request.own.standing.known.Load() }

// IsFor reports whether the caller has shown a good token that is meant for one of these addresses, and for
// none of the others.
func (c Caller) IsFor(these, others []string) bool {
	meant := func(addresses []string) bool {
		return slices.ContainsFunc(sameAddress(addresses...), func(at string) bool { return slices.Contains(c.request.own.Audience, at) })
	}
	return c.request != nil && c.request.own.verified && meant(these) && !meant(others)
}

// Leave says that the request has been answered: from then on its client cannot be told of a refused token.
func (c Caller) Leave() {
	if c.request != nil {
		c.request.credential.alone.Store(true)
	}
}

// Credential signs in the requests to a server for one request of a client, and for the call that began with
// it.
type Credential struct {
	from      *tokenCache
	alone     atomic.Bool                                // no client waits for the answer to its request
	challenge func(status int, values []string) []string // nil in a call that was taken over
	heard     func(authorization string, a answer)       // nil then, too

	mu      sync.Mutex
	need    grade     // of the token that the call came with
	own     *shown    // that token; nil while only another replica has it
	brought *shown    // that of the latest request which brought an answer or a cancellation; nil for none
	waiting time.Time // since when the call waits for a token that the server takes; zero if it does not
}

// Describe says which tokens may stand in. The token itself stays secret.
func (c *Credential) Describe() string {
	if c.need.Hash == "" {
		return ""
	}
	text, _ := json.Marshal(c.need) // texts and times can always be written
	return string(text)
}

// Own returns the header for the client's own request, which begins the call; "" for none. Own, Later and
// Brought also return whether the header is good, as far as is known.
func (c *Credential) Own() (authorization string, good bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.findToken(); t != nil {
		return t.authorization, true
	}
	return "", false
}

// Later returns the header for a request that goes on with the call: the call's own token while that is good,
// then one that may stand in.
func (c *Credential) Later() (authorization string, good bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.laterLocked()
}

// Brought returns the header for a request that hands on an answer or a cancellation: the token of the request
// which brought it, or one that may stand in. If no request brought it, that is the header of Later.
func (c *Credential) Brought() (authorization string, good bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.brought == nil:
		return c.laterLocked()
	case c.brought.isGood():
		return c.brought.authorization, true
	}
	if t := c.findStandIn(c.brought.grade); t != nil {
		return t.authorization, true
	}
	return c.brought.authorization, false
}

// laterLocked is Later. The caller holds c.mu.
func (c *Credential) laterLocked() (authorization string, good bool) {
	t := c.findToken()
	if !t.isGood() && c.need.Hash != "" {
		t = cmp.Or(c.findStandIn(c.need), t) // without any the server would take the caller for anonymous
	}
	if t == nil {
		return "", false
	}
	return t.authorization, t.isGood()
}

// findToken returns the token that the call came with; nil while this replica lacks it. An expired token may
// have got a later end. The caller holds c.mu.
func (c *Credential) findToken() *shown {
	if !c.own.isGood() && c.need.Hash != "" {
		c.own = cmp.Or(c.from.findNewest(c.need.Owner, func(t *shown) bool { return t.Hash == c.need.Hash }), c.own)
	}
	return c.own
}

// findStandIn returns a good token that may take the place of one of this grade; nil for none. The caller holds
// c.mu.
func (c *Credential) findStandIn(of grade) *shown {
	return c.from.findNewest(of.Owner, func(t *shown) bool { return t.isGood() && t.standsIn(of) })
}

// Ready waits until the token of the next request of the call is good. next is Own, Later or Brought. The call
// is shown as waiting meanwhile. A server may refuse by mistake, and a client with a key has nothing else to show:
// a request goes out with the refused token after lookAgain, and after pauses that double, unless it has expired. If
// the server takes none, the wait ends with errNotSignedIn after signInWait in all.
func (c *Credential) Ready(ctx context.Context, next func() (authorization string, good bool)) error {
	if _, good := next(); good || !c.Waits() {
		return nil
	}
	since := c.noteWaiting()
	again := time.Now().Add(max(lookAgain, time.Since(since)))
	ctx, stop := context.WithDeadlineCause(ctx, since.Add(signInWait), errNotSignedIn)
	defer stop()
	defer shim.SayWaiting(ctx)()
	defer c.from.endAwait(c.need.Owner)
	for came := c.from.awaitToken(c.need.Owner); ; came = c.from.nextShown(c.need.Owner) {
		switch value, good := next(); {
		case good:
			c.endWaiting()
			return nil
		case !time.Now().Before(again) && c.isAlive(value):
			return nil
		}
		// The next request of the owner wakes it, and the time does if that is lost.
		if err := work.PauseFor(ctx, came, lookAgain); err != nil {
			c.endWaiting()
			return err
		}
	}
}

// isAlive reports whether this is the value of a token of the call that has yet to expire.
func (c *Credential) isAlive(authorization string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc([]*shown{c.own, c.brought}, func(t *shown) bool {
		return t != nil && t.authorization == authorization && !t.hasExpired()
	})
}

// noteWaiting returns since when the call waits for a token that the server takes.
func (c *Credential) noteWaiting() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting.IsZero() {
		c.waiting = time.Now()
	}
	return c.waiting
}

func (c *Credential) endWaiting() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting = time.Time{}
}

// Waits reports whether a call whose token is refused waits for another one: its client is gone.
func (c *Credential) Waits() bool { return c.alone.Load() && c.need.Hash != "" }

// Hear takes the server's answer to a request of a method that was sent then, signed in by this. A 401 refuses
// the token, and a status of 2xx may take it.
func (c *Credential) Hear(authorization, method string, sent time.Time, status int) {
	a := answer{taken: status/100 == 2, method: method, sent: sent, heard: time.Now()}
	if !a.taken && status != http.StatusUnauthorized {
		return // it may have refused only the request
	}
	if t := c.noteAnswer(authorization, a); t != nil {
		c.from.tellReplicas(t)
	}
	if c.heard != nil {
		c.heard(authorization, a)
	}
}

// noteAnswer keeps what the server has said of a token, and returns the token if other replicas are to hear of
// it.
func (c *Credential) noteAnswer(authorization string, a answer) (news *shown) {
	t := c.from.findNewest(c.need.Owner, func(t *shown) bool { return t.authorization == authorization })
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.taken {
		c.waiting = time.Time{}
	}
	for _, t := range []*shown{t, c.own, c.brought} {
		if t != nil && t.authorization == authorization && t.standing.noteAnswer(a) {
			news = t
		}
	}
	return news
}

// Challenge returns what a server says of a refused token as the client is to see it.
func (c *Credential) Challenge(status int, values []string) []string {
	if c.challenge == nil {
		return values
	}
	return c.challenge(status, values)
}

// sealedToken is a token on its way to the replica that runs a call.
type sealedToken struct {
	grade
	Authorization string `json:"authorization"`
	Verified      bool   `json:"verified,omitempty"`
}

// callBound binds a sealed token to one call.
func callBound(call string) sealed.Binding {
	return sealed.Binding{Method: "token", Params: sha256.Sum256([]byte(call))}
}

// Seal returns the token of a client's request that brings an answer or a cancellation, sealed for the replica
// that runs the call; "" for none.
func (c *Credential) Seal(call string) string {
	c.mu.Lock()
	t := c.own // a request has its own from the beginning
	c.mu.Unlock()
	if c.from.keys == nil || t == nil || t.authorization == "" {
		return ""
	}
	plain, _ := json.Marshal(sealedToken{t.grade, t.authorization, t.verified}) // texts and times can always be written
	return c.from.keys.SealBytes(callBound(call), plain)
}

// Bring makes an answer or a cancellation go out with the token of the request that brought it, as Seal
// returned that. A text that fails to open is ignored.
func (c *Credential) Bring(call, token string) {
	if c.from.keys == nil {
		return
	}
	plain, err := c.from.keys.OpenBytes(token, callBound(call))
	var s sealedToken
	if err != nil || json.Unmarshal(plain, &s) != nil {
		return
	}
	t := c.from.putToken(&shown{grade: s.grade, authorization: s.Authorization, verified: s.Verified})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.brought = t
}

// tokenCache has the tokens of each owner at one upstream. It is bounded: the longest idle owner goes first.
type tokenCache struct {
	upstream string // its name
	refusals Refusals
	forget   time.Duration
	keys     *sealed.Keyring // nil if tokens stay on this replica

	mu     sync.Mutex
	owners *simplelru.LRU[string, *tokensOfOwner]
	// awaited are the owners for whose token calls wait.
	awaited map[string]*awaited
}

type tokensOfOwner struct {
	tokens []*shown
	used   time.Time
}

// awaited says that calls wait for an owner.
type awaited struct {
	calls int
	came  chan struct{} // closed when the owner shows a token
	shown []*shown      // tokens that cannot be verified
}

func newTokenCache(most int, forget time.Duration, keys *sealed.Keyring) *tokenCache {
	owners, _ := simplelru.NewLRU[string, *tokensOfOwner](max(1, most), nil) // fails only for size 0
	return &tokenCache{forget: forget, keys: keys, owners: owners, awaited: map[string]*awaited{}}
}

// putToken notes a token that its owner has just shown, and returns what is known of it.
func (p *tokenCache) putToken(t *shown) *shown {
	if t.standing == nil {
		t.standing = newStanding(t.verified)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.verified {
		of, ok := p.owners.Get(t.Owner)
		if !ok {
			of = &tokensOfOwner{}
			p.owners.Add(t.Owner, of)
		}
		of.used = time.Now()
		t = of.addToken(t)
	}
	if w := p.awaited[t.Owner]; w != nil {
		if !t.verified && !slices.ContainsFunc(w.shown, func(o *shown) bool { return o.Hash == t.Hash }) {
			w.shown = append(w.shown, t) // there is only one: its hash is its owner
		}
		close(w.came)
		w.came = make(chan struct{})
	}
	return t
}

// addToken adds a token; a known one that lives as long stays. The oldest of too many goes.
func (o *tokensOfOwner) addToken(t *shown) *shown {
	if i := slices.IndexFunc(o.tokens, func(known *shown) bool { return known.Hash == t.Hash }); i >= 0 {
		if known := o.tokens[i]; known.Expires.IsZero() || !t.Expires.IsZero() && !known.Expires.Before(t.Expires) {
			return known
		}
		o.tokens = slices.Delete(o.tokens, i, i+1)
	}
	o.tokens = slices.DeleteFunc(o.tokens, func(t *shown) bool { return !t.isGood() && !t.standing.isRefusedHere() })
	o.tokens = append(o.tokens, t)
	slices.SortFunc(o.tokens, func(a, b *shown) int { return b.Issued.Compare(a.Issued) })
	o.tokens = o.tokens[:min(len(o.tokens), mostTokens)]
	return t
}

// findNewest returns the newest token of an owner that is as wanted; nil for none.
func (p *tokenCache) findNewest(owner string, wanted func(*shown) bool) *shown {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*shown
	if of, ok := p.owners.Get(owner); ok {
		of.used = time.Now()
		all = of.tokens
	}
	if w := p.awaited[owner]; w != nil {
		all = slices.Concat(all, w.shown)
	}
	if i := slices.IndexFunc(all, wanted); i >= 0 {
		return all[i]
	}
	return nil
}

// awaitToken returns a channel that is closed when an owner shows a token. Each call of it needs an endAwait.
func (p *tokenCache) awaitToken(owner string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.awaited[owner]
	if w == nil {
		w = &awaited{came: make(chan struct{})}
		p.awaited[owner] = w
	}
	w.calls++
	return w.came
}

// nextShown is awaitToken for a call that waits already.
func (p *tokenCache) nextShown(owner string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.awaited[owner].came
}

func (p *tokenCache) endAwait(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.awaited[owner]; w != nil {
		if w.calls--; w.calls == 0 {
			delete(p.awaited, owner)
		}
	}
}

// forgetExpired forgets owners who are idle for long, or whose tokens have all expired or been refused.
func (p *tokenCache) forgetExpired() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, owner := range p.owners.Keys() {
		of, _ := p.owners.Peek(owner)
		if time.Since(of.used) >= p.forget || !slices.ContainsFunc(of.tokens, (*shown).isGood) {
			p.owners.Remove(owner)
		}
	}
}
