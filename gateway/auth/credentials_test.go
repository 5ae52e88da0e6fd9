package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/sealed"
	"taskgate/internal/wiretest"
)

// token is one of alice, with a grade that is changed.
func token(name string, change func(*grade)) *shown {
	t := &shown{authorization: "Bearer " + name, verified: true, grade: grade{
		Owner: "alice", Client: true, Hash: name, Audience: []string{"server"}, Scopes: []string{"read"},
		Issued: time.Now(), Expires: time.Now().Add(time.Hour),
	}}
	if change != nil {
		change(&t.grade)
	}
	return t
}

// generate makes keys that seal tokens.
func generate(t *testing.T) *sealed.Keyring {
	t.Helper()
	return wiretest.Must(sealed.Generate())(t)
}

// request is what signs in for a request that came with a token.
func (p *tokenCache) request(t *shown) (c *Credential, leave func()) {
	c = &Credential{from: p, need: t.grade, own: p.putToken(t)}
	return c, func() { c.alone.Store(true) }
}

// hear has the server answer to a call that goes out now.
func (c *Credential) hear(authorization string, status int) {
	c.Hear(authorization, "tools/call", time.Now(), status)
}

// header is what Own, Later or Brought returns.
func header(of func() (string, bool)) string {
	authorization, _ := of()
	return authorization
}

// TestStandIn: the call's own token goes out as long as it is good. After that another token stands in only
// if it is of the same owner, for the same audience, with at least the same scopes, and newer; and none
// does for the first request of a call.
func TestStandIn(t *testing.T) {
	others := map[string]struct {
		change func(*grade)
		may    bool
	}{
		"newer":          {func(g *grade) {}, true},
		"more scopes":    {func(g *grade) { g.Scopes = []string{"read", "write"} }, true},
		"older":          {func(g *grade) { g.Issued = g.Issued.Add(-time.Hour) }, false},
		"as old":         {func(g *grade) { g.Issued = g.Issued.Add(-time.Minute) }, false},
		"undated":        {func(g *grade) { g.Issued = time.Time{} }, false},
		"fewer scopes":   {func(g *grade) { g.Scopes = nil }, false},
		"other scopes":   {func(g *grade) { g.Scopes = []string{"write"} }, false},
		"other audience": {func(g *grade) { g.Audience = []string{"gateway"} }, false},
		"more audiences": {func(g *grade) { g.Audience = []string{"gateway", "server"} }, false},
		"other client":   {func(g *grade) { g.Owner = "alice at another client" }, false},
		"no client":      {func(g *grade) { g.Client = false }, false},
		"expired":        {func(g *grade) { g.Expires = g.Issued }, false},
	}
	for state, end := range map[string]func(*Credential){
		"good":    func(*Credential) {},
		"expired": func(*Credential) { <-time.After(time.Hour) },
		"refused": func(c *Credential) { c.hear("Bearer own", 401) },
	} {
		for name, other := range others {
			synctest.Test(t, func(t *testing.T) {
				p := newTokenCache(10, time.Hour, nil)
				c, leave := p.request(token("own", nil))
				<-time.After(time.Minute)
				p.putToken(token("other", func(g *grade) { g.Expires = g.Expires.Add(time.Hour); other.change(g) }))
				leave()
				end(c)
				later := "Bearer own"
				if state != "good" && other.may {
					later = "Bearer other"
				}
				if got := header(c.Later); got != later {
					t.Errorf("own is %s, the other %s: a later request goes out with %q", state, name, got)
				}
				if got, _ := c.Brought(); got != later {
					t.Errorf("own is %s, the other %s: an answer goes out with %q", state, name, got)
				}
				if got := header(c.Own); got != "Bearer own" {
					t.Errorf("own is %s, the other %s: the first request goes out with %q", state, name, got)
				}
			})
		}
	}
}

// TestRefusedForCalls: a server that refuses a token for a call and takes it for something else, such as a
// handshake, is not asked with it again for that call, until it takes the token for another one.
func TestRefusedForCalls(t *testing.T) {
	p := newTokenCache(10, time.Hour, nil)
	c, leave := p.request(token("own", nil))
	p.putToken(token("newer", func(g *grade) { g.Issued = g.Issued.Add(time.Second) }))
	leave()
	c.hear("Bearer own", 401)
	c.Hear("Bearer own", "initialize", time.Now(), 200)
	if got := header(c.Later); got != "Bearer newer" {
		t.Errorf("it goes on with %q", got)
	}
	c.hear("Bearer own", 200)
	if got := header(c.Later); got != "Bearer own" {
		t.Errorf("after another call it goes on with %q", got)
	}
}

// TestBrought: an answer or a cancellation goes out with the token of the request that brings it, and
// nothing else does. The token is sealed on its way, for one call, and one that does not open changes nothing.
func TestBrought(t *testing.T) {
	keys, others := generate(t), generate(t)
	p, there := newTokenCache(10, time.Hour, keys), newTokenCache(10, time.Hour, keys)
	c, _ := p.request(token("own", nil))
	other, _ := there.request(token("other", func(g *grade) { g.Scopes = nil }))
	stranger, _ := newTokenCache(10, time.Hour, others).request(token("stranger", nil))
	keyless, _ := newTokenCache(10, time.Hour, nil).request(token("keyless", nil))
	nobody, _ := there.request(&shown{})
	for _, none := range []string{"", "what is none", other.Seal("another call"), stranger.Seal("call"), keyless.Seal("call"), nobody.Seal("call")} {
		c.Bring("call", none)
		if got, good := c.Brought(); got != "Bearer own" || !good {
			t.Errorf("%q brings %q, %v", none, got, good)
		}
	}
	text := other.Seal("call")
	if strings.Contains(text, "other") || text == other.Seal("call") {
		t.Errorf("it is sealed as %q", text)
	}
	keyless.Bring("call", text)
	if got, _ := keyless.Brought(); got != "Bearer keyless" {
		t.Errorf("it was opened without a key: %q", got)
	}
	c.Bring("call", text)
	if got, good := c.Brought(); got != "Bearer other" || !good || header(c.Later) != "Bearer own" || header(c.Own) != "Bearer own" {
		t.Errorf("%q, %v", got, good)
	}
}

// TestBroughtTokenIsRefused: once the server has refused the token of an answer, one goes out with the next token that
// the client brings, or with one that stands in for the refused one, and never with the call's own, however good that is.
func TestBroughtTokenIsRefused(t *testing.T) {
	keys := generate(t)
	p := newTokenCache(10, time.Hour, keys)
	c, _ := p.request(token("own", func(g *grade) { g.Scopes = []string{"read", "write"}; g.Issued = g.Issued.Add(-time.Hour) }))
	weak, _ := p.request(token("weak", nil))
	c.Bring("call", weak.Seal("call"))
	c.hear("Bearer weak", 401)
	if got, good := c.Brought(); got != "Bearer weak" || good || header(c.Later) != "Bearer own" {
		t.Errorf("once it is refused: %q, %v, later %q", got, good, header(c.Later))
	}
	p.putToken(token("older", func(g *grade) { g.Issued = g.Issued.Add(-time.Minute) }))
	p.putToken(token("refreshed, and less", func(g *grade) { g.Issued, g.Scopes = g.Issued.Add(time.Minute), nil }))
	if got, good := c.Brought(); got != "Bearer weak" || good {
		t.Errorf("with others: %q, %v", got, good)
	}
	p.putToken(token("refreshed", func(g *grade) { g.Issued = g.Issued.Add(time.Minute) }))
	if got, good := c.Brought(); got != "Bearer refreshed" || !good {
		t.Errorf("once it is refreshed: %q, %v", got, good)
	}
	next, _ := p.request(token("next", nil))
	c.Bring("call", next.Seal("call"))
	if got, good := c.Brought(); got != "Bearer next" || !good {
		t.Errorf("with the next answer: %q, %v", got, good)
	}
}

// TestBroughtTokenIsShown: an owner who answers at another replica has shown the token here as well: a call that
// waits for its owner goes on with it. A token that nobody can verify is no other call's.
func TestBroughtTokenIsShown(t *testing.T) {
	keys := generate(t)
	p, there := newTokenCache(10, time.Hour, keys), newTokenCache(10, time.Hour, keys)
	c, leave := p.request(token("own", func(g *grade) { g.Issued = g.Issued.Add(-time.Minute) }))
	leave()
	c.hear("Bearer own", 401)
	opaque := token("opaque", nil)
	opaque.verified = false
	unknown, _ := there.request(opaque)
	c.Bring("call", unknown.Seal("call"))
	if got, _ := c.Brought(); got != "Bearer opaque" || header(c.Later) != "Bearer own" {
		t.Errorf("an opaque token: %q, later %q", got, header(c.Later))
	}
	newer, _ := there.request(token("newer", nil))
	c.Bring("call", newer.Seal("call"))
	if got, _ := c.Brought(); got != "Bearer newer" || header(c.Later) != "Bearer newer" {
		t.Errorf("a newer token: %q, later %q", got, header(c.Later))
	}
}

// TestAdoptedCredential: another replica has only the description of a token. The call's first request
// waits for that very token, a later one also for one that stands in.
func TestAdoptedCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTokenCache(10, time.Hour, nil).request(token("own", nil))
		p := newTokenCache(10, time.Hour, nil)
		all := &Credentials{upstreams: map[string]*tokenCache{"up": p}}
		adopted := func() *Credential { return all.Represent("up", c.Describe()) }
		<-time.After(time.Minute)
		p.putToken(token("newer", nil))
		brief, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := adopted().Ready(brief, adopted().Own); err == nil || header(adopted().Own) != "" {
			t.Errorf("the first request goes out with another token: %v, %q", err, header(adopted().Own))
		}
		if err := adopted().Ready(t.Context(), adopted().Later); err != nil || header(adopted().Later) != "Bearer newer" {
			t.Errorf("a later request: %v, %q", err, header(adopted().Later))
		}
		p.putToken(token("own", func(g *grade) { *g = c.need }))
		if err := adopted().Ready(t.Context(), adopted().Own); err != nil || header(adopted().Own) != "Bearer own" {
			t.Errorf("the first request: %v, %q", err, header(adopted().Own))
		}
		if all.Represent("open", c.Describe()) != nil {
			t.Error("an upstream without passthrough")
		}
	})
}

// TestReady: whoever waits goes on with the next good token of the owner, also if the wake-up is lost. It asks the
// server again with the refused one, since a refusal may pass, and gives up when it was refused for so long. A client
// that is there is told what the server says instead.
func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTokenCache(10, time.Hour, nil)
		c, leave := p.request(token("own", nil))
		c.hear("Bearer own", 401)
		if err := c.Ready(t.Context(), c.Later); err != nil || c.Waits() {
			t.Errorf("while the client is here: %v", err)
		}
		leave()
		wait := func() <-chan error {
			done := make(chan error, 1)
			go func() { done <- c.Ready(t.Context(), c.Later) }()
			synctest.Wait()
			return done
		}
		over := func(done <-chan error) bool {
			synctest.Wait()
			return len(done) > 0
		}
		done := wait()
		p.putToken(token("bob's", func(g *grade) { g.Owner = "bob" }))
		p.putToken(token("weaker", func(g *grade) { g.Scopes, g.Issued = nil, g.Issued.Add(time.Second) }))
		if over(done) {
			t.Fatal("it goes on with another's token, or a weaker one")
		}
		<-time.After(time.Minute)
		p.putToken(token("newer", nil))
		if !over(done) || <-done != nil || header(c.Later) != "Bearer newer" {
			t.Fatalf("alice has come, and it has %q", header(c.Later))
		}
		c.hear("Bearer newer", 401)
		<-wait()
		c.hear("Bearer newer", 200)
		began := time.Now()
		if <-wait() != nil || time.Since(began) != 0 {
			t.Errorf("the server takes it again, and it waits for %v", time.Since(began))
		}
		var asked []time.Duration
		var err error
		for err == nil {
			<-time.After(time.Nanosecond)
			c.hear("Bearer newer", 401)
			if err = <-wait(); err == nil {
				asked = append(asked, time.Since(began).Round(time.Second))
			}
		}
		if want := []time.Duration{30 * time.Second, 90 * time.Second, 210 * time.Second, 450 * time.Second}; !slices.Equal(asked, want) {
			t.Errorf("it asks after %v", asked)
		}
		if waited := time.Since(began).Round(time.Second); !errors.Is(err, errNotSignedIn) || waited != signInWait {
			t.Errorf("%v after %v", err, waited)
		}
		if len(p.awaited) != 0 {
			t.Error("it is waited for still")
		}
	})
}

// TestWaitBeginsAnew: once the owner has come, or the wait was given up, the next wait is as long as any.
func TestWaitBeginsAnew(t *testing.T) {
	for name, wait := range map[string]func(t *testing.T, p *tokenCache, c *Credential) error{
		"she has come": func(t *testing.T, p *tokenCache, c *Credential) error {
			time.AfterFunc(time.Second, func() { p.putToken(token("newer", nil)) })
			return c.Ready(t.Context(), c.Later)
		},
		"it was given up": func(t *testing.T, p *tokenCache, c *Credential) error {
			brief, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			_ = c.Ready(brief, c.Later)
			p.putToken(token("newer", nil))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newTokenCache(10, time.Hour, nil)
				c, leave := p.request(token("own", nil))
				leave()
				c.hear("Bearer own", 401)
				if err := wait(t, p, c); err != nil || header(c.Later) != "Bearer newer" {
					t.Fatalf("%v, and %q", err, header(c.Later))
				}
				c.hear("Bearer newer", 503) // which says nothing of the token
				<-time.After(20 * time.Minute)
				c.hear("Bearer newer", 401)
				wiretest.Check(t, c.Ready(t.Context(), c.Later))
			})
		})
	}
}

// TestExpiredTokenStaysHere: the server is not asked again with a token that has expired: no refusal of that passes, and
// one of an answer would end its call. The next token of the owner goes out.
func TestExpiredTokenStaysHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := generate(t)
		p := newTokenCache(10, 3*time.Hour, keys)
		c, leave := p.request(token("own", nil))
		brought, _ := p.request(token("brought", nil))
		c.Bring("call", brought.Seal("call"))
		leave()
		<-time.After(2 * time.Hour)
		for name, next := range map[string]func() (string, bool){"Later": c.Later, "Brought": c.Brought} {
			brief, stop := context.WithTimeout(t.Context(), 5*time.Minute)
			if err := c.Ready(brief, next); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, and %q goes out", name, err, header(next))
			}
			stop()
		}
		p.putToken(token("refreshed", nil))
		if err := c.Ready(t.Context(), c.Brought); err != nil || header(c.Brought) != "Bearer refreshed" {
			t.Errorf("alice has come: %v, %q", err, header(c.Brought))
		}
	})
}

// TestStrangersLeaveNothing: a token that signs nobody in is not remembered, unless a call waits for it.
func TestStrangersLeaveNothing(t *testing.T) {
	p := newTokenCache(3, time.Hour, nil)
	stranger := func(name string) *shown {
		return &shown{authorization: "Bearer " + name, grade: grade{Owner: "token:" + name, Hash: name}}
	}
	for i := range 100 {
		p.putToken(stranger(fmt.Sprint(i)))
	}
	if p.owners.Len() != 0 || len(p.awaited) != 0 {
		t.Errorf("%d owners, %d awaited", p.owners.Len(), len(p.awaited))
	}
	p.awaitToken("token:mine")
	p.putToken(stranger("mine"))
	p.putToken(stranger("yours"))
	if got := p.findNewest("token:mine", (*shown).isGood); got == nil || got.authorization != "Bearer mine" {
		t.Errorf("a call that waits finds %v", got)
	}
	p.endAwait("token:mine")
	if got := p.findNewest("token:mine", (*shown).isGood); got != nil {
		t.Errorf("after that there is %v", got)
	}
	for i := range 10 {
		p.putToken(token(fmt.Sprint(i), func(g *grade) { g.Owner = fmt.Sprint(i) }))
	}
	for i := range 100 {
		p.putToken(token(fmt.Sprint("again", i), func(g *grade) { g.Owner = "9" }))
	}
	if of, _ := p.owners.Get("9"); p.owners.Len() != 3 || len(of.tokens) > mostTokens {
		t.Errorf("%d owners, %d tokens", p.owners.Len(), len(of.tokens))
	}
}

// TestCredentialsAreForgotten once their owner is not there for long, or all have expired.
func TestCredentialsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTokenCache(10, time.Hour, nil)
		p.putToken(token("a", func(g *grade) { g.Owner, g.Expires = "a", time.Time{} }))
		p.putToken(token("b", func(g *grade) { g.Owner, g.Expires = "b", time.Time{} }))
		p.putToken(token("c", func(g *grade) { g.Owner, g.Expires = "c", time.Now().Add(time.Minute) }))
		<-time.After(30 * time.Minute)
		p.findNewest("a", (*shown).isGood)
		p.forgetExpired()
		if p.owners.Contains("c") || !p.owners.Contains("b") {
			t.Error("what has expired is there, or what has not is not")
		}
		<-time.After(31 * time.Minute)
		p.forgetExpired()
		if !p.owners.Contains("a") || p.owners.Contains("b") {
			t.Error("it does not go by use")
		}
	})
}
