package auth

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/shim"
)

// newTestCredentials are those of the upstream up, which has passthrough, and of keys, which
// has not.
func newTestCredentials() *Credentials {
	c := config.Default()
	up, other := config.NewUpstream("up", "http://127.0.0.1:1"), config.NewUpstream("open", "http://127.0.0.1:1")
	up.Auth = &config.Auth{Passthrough: config.NewPassthrough()}
	c.Upstreams = []*config.Upstream{up, other}
	return NewCredentials(c)
}

// visitor is a request of alice that came with a token.
func visitor(authorization string, until time.Time) Caller {
	return Caller{Principal: shim.Principal{Subject: "alice"}, request: &passedOn{authorization: authorization, until: until}}
}

// TestOutgoing: a request goes out with what it came with. What is asked later has the newest of
// the same principal at the same upstream.
func TestOutgoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, now := newTestCredentials(), time.Now()
		show := func(authorization string, until time.Time) Caller {
			c.of("up", "alice").put("alice", authorization, until)
			return visitor(authorization, until)
		}
		check := func(when string, ctx context.Context, upstream, subject, want string, known bool) {
			t.Helper()
			if got, ok := c.Outgoing(ctx, upstream, subject); got != want || ok != known {
				t.Errorf("%s: %q, %v", when, got, ok)
			}
		}
		check("before anything", t.Context(), "up", "alice", "", false)
		check("of nobody", t.Context(), "up", "", "", true)
		check("without passthrough", t.Context(), "open", "", "", false)

		first := show("a1", now.Add(time.Hour))
		ctx := WithCaller(t.Context(), first)
		second := show("a2", now.Add(2*time.Hour))
		check("in a request", ctx, "up", "alice", "a1", true)
		check("in another", WithCaller(t.Context(), second), "up", "alice", "a2", true)
		check("in no request", t.Context(), "up", "alice", "a2", true)
		check("at another upstream", ctx, "open", "alice", "", false)
		check("for somebody else", ctx, "up", "bob", "", false)
		check("for nobody", ctx, "up", "", "", true)
		check("in a request of nobody", WithCaller(t.Context(), Caller{request: &passedOn{}}), "up", "", "", true)

		show("a1", now.Add(time.Hour)) // by a client that is late
		check("after an old one", t.Context(), "up", "alice", "a2", true)
		first.Leave()
		check("after the request", ctx, "up", "alice", "a2", true)
		<-time.After(90 * time.Minute)
		third := show("a3", time.Time{})
		check("with one that says nothing of its end", t.Context(), "up", "alice", "a3", true)
		check("in a request whose token has expired", WithCaller(t.Context(), visitor("a1", now.Add(time.Hour))), "up", "alice", "a3", true)
		late := visitor("a2", now.Add(time.Hour))
		late.Leave()
		check("after a request whose token has expired", WithCaller(t.Context(), late), "up", "alice", "a3", true)
		third.Leave()
		show("a4", now.Add(100*time.Minute))
		<-time.After(11 * time.Minute)
		check("once it has expired", t.Context(), "up", "alice", "", false)
		check("after a request, once all has expired", WithCaller(t.Context(), late), "up", "alice", "a2", false)
		check("after a request that says nothing of its end", WithCaller(t.Context(), third), "up", "alice", "a3", true)
	})
}

// TestCredentialsAreForgotten: they are bounded in number and in time.
func TestCredentialsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCredentials()
		p := c.of("up", "alice")
		p.forget = time.Hour
		p.entries.Resize(3)
		for i := range 5 {
			p.put(fmt.Sprint(i), "t", time.Time{})
		}
		if p.entries.Len() != 3 {
			t.Errorf("%d are kept", p.entries.Len())
		}
		<-time.After(30 * time.Minute)
		c.Outgoing(t.Context(), "up", "4")
		p.put("short", "t", time.Now().Add(time.Minute))
		<-time.After(31 * time.Minute)
		p.tidy()
		if _, ok := c.Outgoing(t.Context(), "up", "4"); !ok || p.entries.Len() != 1 {
			t.Errorf("%d are left, one in use: %v", p.entries.Len(), ok)
		}
	})
}

// TestWaitForCredentials: the next request of the owner ends the wait, also if the wake-up is
// lost; another's does not.
func TestWaitForCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestCredentials()
		p := c.of("up", "alice")
		p.entries.Resize(2)
		told := 0
		wait := func(ctx context.Context) <-chan error {
			done := make(chan error, 1)
			go func() { done <- c.Wait(ctx, "up", "alice", func() { told++ }) }()
			synctest.Wait()
			return done
		}
		over := func(done <-chan error) bool {
			synctest.Wait()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
				return true
			default:
				return false
			}
		}
		done := wait(t.Context())
		p.put("bob", "b", time.Time{})
		<-time.After(10 * lookAgain)
		if over(done) || told != 1 {
			t.Fatalf("told %d times", told)
		}
		p.put("alice", "a", time.Now().Add(time.Hour))
		if !over(done) {
			t.Fatal("alice has come, and nobody noticed")
		}
		if !over(wait(t.Context())) || told != 1 {
			t.Fatal("it waits for what is there")
		}
		<-time.After(2 * time.Hour)
		done = wait(t.Context())
		if over(done) || told != 2 {
			t.Fatal("it takes what has expired")
		}
		for i := range 4 {
			p.put(fmt.Sprint(i), "t", time.Time{}) // forgets who waits for alice
		}
		p.put("alice", "a", time.Time{})
		if over(done) {
			t.Fatal("this was to be the second way to wake up")
		}
		<-time.After(lookAgain)
		if !over(done) {
			t.Fatal("it does not look again")
		}
		gone := errors.New("gone")
		ctx, leave := context.WithCancelCause(t.Context())
		p.entries.Purge()
		done = wait(ctx)
		leave(gone)
		if err := <-done; err != gone {
			t.Error(err)
		}
		if c.Wait(ctx, "up", "", nil) != nil || c.Wait(ctx, "open", "alice", nil) != nil {
			t.Error("it waits where nothing is needed")
		}
	})
}
