package auth

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

// quietIssuer fetches keys by a function, under the clock of the test.
func quietIssuer(t *testing.T, fetch func(context.Context) (*keySet, error)) *issuer {
	t.Helper()
	i := newIssuer("https://issuer.example", "", slog.New(slog.DiscardHandler))
	i.fetch = fetch
	i.every(10 * time.Minute)
	ctx, stop := context.WithCancel(t.Context())
	go func() { _ = i.run(ctx) }()
	t.Cleanup(stop)
	return i
}

// TestUnknownKeysDoNotHammer: whoever sends tokens with made-up keys has the keys of the issuer
// fetched once in a while, and not for each.
func TestUnknownKeysDoNotHammer(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	synctest.Test(t, func(t *testing.T) {
		fetched := 0
		i := quietIssuer(t, func(context.Context) (*keySet, error) {
			fetched++
			return parseKeys(of.Keys())
		})
		synctest.Wait()
		for n := range 1000 {
			if _, _, err := i.key(t.Context(), "made-up"); !errors.Is(err, errUnknownKey) {
				t.Fatal(err)
			}
			if _, _, err := i.key(t.Context(), of.Key().KeyID); err != nil {
				t.Fatal(err)
			}
			<-time.After(100*time.Millisecond + time.Duration(n)*time.Microsecond)
		}
		if fetched < 5 || fetched > 12 { // in 100.5 s
			t.Errorf("fetched %d times", fetched)
		}
	})
}

// TestNewKeyIsFetched: a token that is signed with a new key waits for the issuer once.
func TestNewKeyIsFetched(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	synctest.Test(t, func(t *testing.T) {
		i := quietIssuer(t, func(ctx context.Context) (*keySet, error) {
			<-time.After(time.Second)
			return parseKeys(of.Keys())
		})
		old := of.Key().KeyID
		if _, _, err := i.key(t.Context(), old); err != nil {
			t.Errorf("at the start: %v", err)
		}
		<-time.After(time.Minute)
		of.NewKey()
		began := time.Now()
		if _, _, err := i.key(t.Context(), of.Key().KeyID); err != nil || time.Since(began) != time.Second {
			t.Errorf("a new key: %v, after %v", err, time.Since(began))
		}
	})
}

// TestKeysAreRefreshed: a key that is withdrawn is not known any more after a while, without
// anybody asking.
func TestKeysAreRefreshed(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	synctest.Test(t, func(t *testing.T) {
		i := quietIssuer(t, func(context.Context) (*keySet, error) { return parseKeys(of.Keys()) })
		synctest.Wait()
		old := of.Key().KeyID
		of.NewKey()
		of.Withdraw()
		<-time.After(10*time.Minute + time.Second)
		if i.keys.Load().key(old) != nil || i.keys.Load().key(of.Key().KeyID) == nil {
			t.Error("the keys are as before")
		}
	})
}

// TestIssuerIsDown: without any keys nothing can be verified, which is not the client's fault.
// Keys that are known stay known.
func TestIssuerIsDown(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		i := quietIssuer(t, func(ctx context.Context) (*keySet, error) {
			if down.Load() {
				<-ctx.Done() // it does not answer
				return nil, ctx.Err()
			}
			return parseKeys(of.Keys())
		})
		ask := func(what, id string, want error, most time.Duration) {
			t.Helper()
			began := time.Now()
			if _, _, err := i.key(t.Context(), id); !errors.Is(err, want) || time.Since(began) > most {
				t.Errorf("%s: %v, after %v", what, err, time.Since(began))
			}
		}
		ask("at the start", of.Key().KeyID, errNoKeys, keyWait)
		<-time.After(5500 * time.Millisecond)
		ask("too early for another attempt", of.Key().KeyID, errNoKeys, 0)
		down.Store(false)
		<-time.After(2 * time.Minute) // it is tried again without being asked
		if i.keys.Load() == nil {
			t.Error("no keys")
		}
		down.Store(true)
		<-time.After(time.Hour)
		ask("a known key", of.Key().KeyID, nil, 0)
		ask("an unknown key", "made-up", errNoKeys, keyWait)

		<-time.After(time.Minute)
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		if _, _, err := i.key(ctx, "made-up"); err == nil || time.Since(began) > time.Second {
			t.Errorf("a client that leaves: %v, after %v", err, time.Since(began))
		}
	})
}

// TestNoKeysIs503: a client hears that its token cannot be verified at the moment, and gets no
// challenge: a new token would not help.
func TestNoKeysIs503(t *testing.T) {
	i := wiretest.NewIssuer(t, "")
	i.SetDown(true)
	m := startTokens(t, wiretest.WithTokens(config.Default(), i))
	token := i.Token("alice", nil)
	if _, refusal := m.Identify(request("Bearer " + token)); refusal == nil || refusal.Status != http.StatusServiceUnavailable || refusal.Challenge != "" {
		t.Errorf("%v", refusal)
	}
	i.SetDown(false)
	deadline := time.Now().Add(wiretest.Patience)
	for {
		if _, refusal := m.Identify(request("Bearer " + token)); refusal == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("not let in: %v", refusal)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// TestDiscovery: metadata is found at each of the places where it may be, and must be that of
// the issuer.
func TestDiscovery(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	for name, c := range map[string]struct {
		path     string // of the issuer
		place    string // of the metadata
		issuer   string // "" is that of the configuration
		keys     string // "" is where they are
		redirect bool
		found    bool
	}{
		"authorization server":           {place: "/.well-known/oauth-authorization-server", found: true},
		"authorization server at a path": {path: "/a/b", place: "/.well-known/oauth-authorization-server/a/b", found: true},
		"OpenID":                         {place: "/.well-known/openid-configuration", found: true},
		"OpenID, path first":             {path: "/a", place: "/a/.well-known/openid-configuration", found: true},
		"OpenID, path last":              {path: "/a", place: "/.well-known/openid-configuration/a", found: true},
		"issuer with a slash":            {path: "/", place: "/.well-known/openid-configuration", found: true},
		"elsewhere":                      {place: "/metadata"},
		"another issuer":                 {place: "/.well-known/oauth-authorization-server", issuer: "https://elsewhere.example"},
		"no keys":                        {place: "/.well-known/oauth-authorization-server", keys: "-"},
		"keys in a file":                 {place: "/.well-known/oauth-authorization-server", keys: "file:///etc/passwd"},
		"keys that are none":             {place: "/.well-known/oauth-authorization-server", keys: "/nothing"},
		"a redirect":                     {place: "/.well-known/oauth-authorization-server", redirect: true},
	} {
		t.Run(name, func(t *testing.T) {
			var url string
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == c.place && c.redirect:
					http.Redirect(w, r, "/metadata", http.StatusFound)
				case r.URL.Path == c.place || c.redirect && r.URL.Path == "/metadata":
					issuer, keys := url+c.path, url+"/keys"
					if c.issuer != "" {
						issuer = c.issuer
					}
					switch {
					case c.keys == "-":
						keys = ""
					case strings.HasPrefix(c.keys, "/"):
						keys = url + c.keys
					case c.keys != "":
						keys = c.keys
					}
					_, _ = w.Write([]byte(`{"issuer":"` + issuer + `","jwks_uri":"` + keys + `"}`))
				case r.URL.Path == "/keys":
					_, _ = w.Write(of.Keys())
				case r.URL.Path == "/nothing":
					_, _ = w.Write([]byte(`{"keys":[{"kty":"oct","k":"c2VjcmV0"},{"kty":"new"}]}`))
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			}))
			defer web.Close()
			url = web.URL
			set, err := newKeySource(url+c.path, "").fetch(t.Context())
			if c.found != (err == nil) || c.found && set.size() != 1 {
				t.Errorf("%d keys, %v", set.size(), err)
			}
		})
	}
	if set, err := newKeySource("https://nobody.example", of.URL+"/keys").fetch(t.Context()); err != nil || set.size() != 1 {
		t.Errorf("with jwks_url: %v", err)
	}
}

// TestKeySets: what is none of the keys for signatures is left out; a set that has none is
// refused, and what is known stays.
func TestKeySets(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	good := strings.TrimSuffix(strings.TrimPrefix(string(of.Keys()), `{"keys":[`), `]}`)
	for name, c := range map[string]struct {
		text string
		size int // 0: refused
	}{
		"one":            {`{"keys":[` + good + `]}`, 1},
		"others beside":  {`{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"s"},{"kty":"??"},7,` + good + `]}`, 1},
		"for encryption": {`{"keys":[` + strings.Replace(good, `"use":"sig"`, `"use":"enc"`, 1) + `]}`, 0},
		"none":           {`{"keys":[]}`, 0},
		"no set":         {`{}`, 0},
		"no JSON":        {`<html>`, 0},
		"a secret only":  {`{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}`, 0},
	} {
		if set, err := parseKeys([]byte(c.text)); set.size() != c.size || (err == nil) != (c.size > 0) {
			t.Errorf("%s: %d keys, %v", name, set.size(), err)
		}
	}
	set, err := parseKeys(of.Keys())
	if err != nil || set.key("") == nil {
		t.Errorf("a token need not name the only key: %v", err)
	}
	of.NewKey()
	if set, err = parseKeys(of.Keys()); err != nil || set.key("") != nil || set.key("key-1") == nil || set.key("key-2") != nil {
		t.Errorf("of two it must name one: %v", err)
	}
}
