package auth

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/go-jose/go-jose/v4"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
	"taskgate/internal/work"
)

// quietIssuer fetches keys by a function, under the clock of the test.
func quietIssuer(t *testing.T, fetch func(context.Context) (*keySet, error)) *issuer {
	t.Helper()
	lasting := work.NewBackground(context.Canceled)
	i := newIssuer("https://issuer.example", "", lasting, slog.New(slog.DiscardHandler))
	i.keys.fetch = func(ctx context.Context) (*keySet, error) {
		set, err := fetch(ctx)
		i.down.Store(err != nil)
		return set, err
	}
	t.Cleanup(func() { _ = lasting.Close(context.Background()) })
	return i
}

// keysIn reads a JWK set that is not fetched.
func keysIn(t *testing.T, document []byte) *keySet {
	t.Helper()
	var text struct{ Keys []json.RawMessage }
	wiretest.Check(t, json.Unmarshal(document, &text))
	var all []jwkset.JWK
	for _, raw := range text.Keys {
		all = append(all, wiretest.Must(jwkset.NewJWKFromRawJSON(raw, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{}))(t))
	}
	return wiretest.Must(newKeySet(all))(t)
}

// has asks an issuer for a key.
func (i *issuer) has(ctx context.Context, id string) error {
	_, _, err := i.findKeys(ctx, jose.Header{KeyID: id, Algorithm: "ES256"})
	return err
}

// TestUnknownKeysDoNotHammer: whoever sends tokens with made-up keys has the keys of the issuer
// fetched once in a while, and not for each.
func TestUnknownKeysDoNotHammer(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	synctest.Test(t, func(t *testing.T) {
		fetched := 0
		i := quietIssuer(t, func(context.Context) (*keySet, error) {
			fetched++
			return keysIn(t, of.Keys()), nil
		})
		for n := range 1000 {
			if err := i.has(t.Context(), "made-up"); !errors.Is(err, errUnknownKey) {
				t.Fatal(err)
			}
			wiretest.Check(t, i.has(t.Context(), of.Key().KeyID))
			<-time.After(100*time.Millisecond + time.Duration(n)*time.Microsecond)
		}
		if fetched < 5 || fetched > 12 { // in 100.5 s
			t.Errorf("fetched %d times", fetched)
		}
	})
}

// TestNewKeyIsFetched: a token that is signed with a new key waits for the issuer once, and all such
// tokens share the wait.
func TestNewKeyIsFetched(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	synctest.Test(t, func(t *testing.T) {
		fetched := 0
		i := quietIssuer(t, func(ctx context.Context) (*keySet, error) {
			fetched++
			<-time.After(time.Second)
			return keysIn(t, of.Keys()), nil
		})
		if err := i.has(t.Context(), of.Key().KeyID); err != nil {
			t.Errorf("at the start: %v", err)
		}
		<-time.After(time.Minute)
		of.NewKey()
		began := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := i.has(t.Context(), of.Key().KeyID); err != nil || time.Since(began) != time.Second {
					t.Errorf("a new key: %v, after %v", err, time.Since(began))
				}
			})
		}
		all.Wait()
		if fetched != 2 {
			t.Errorf("fetched %d times", fetched)
		}
	})
}

// TestKeysAreRefreshed: a key that is withdrawn is not known any more after a while.
func TestKeysAreRefreshed(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	synctest.Test(t, func(t *testing.T) {
		i := quietIssuer(t, func(context.Context) (*keySet, error) { return keysIn(t, of.Keys()), nil })
		old := of.Key().KeyID
		wiretest.Check(t, i.has(t.Context(), old))
		of.NewKey()
		of.Withdraw()
		<-time.After(20 * time.Minute)
		if i.has(t.Context(), old) == nil || i.has(t.Context(), of.Key().KeyID) != nil {
			t.Error("the keys are as before")
		}
	})
}

// TestIssuerIsDown: without any keys nothing can be verified, which is not the client's fault.
// Keys that are known stay known for hours.
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
			return keysIn(t, of.Keys()), nil
		})
		ask := func(what, id string, want error, most time.Duration) {
			t.Helper()
			began := time.Now()
			if err := i.has(t.Context(), id); !errors.Is(err, want) || time.Since(began) > most {
				t.Errorf("%s: %v, after %v", what, err, time.Since(began))
			}
		}
		ask("at the start", of.Key().KeyID, errNoKeys, 2*fetchWait)
		down.Store(false)
		<-time.After(time.Minute)
		ask("when it is up", of.Key().KeyID, nil, 0)
		down.Store(true)
		for range 11 {
			<-time.After(time.Hour)
			ask("a known key", of.Key().KeyID, nil, fetchWait)
		}
		ask("an unknown key", "made-up", errNoKeys, fetchWait)
		<-time.After(time.Hour)
		ask("a key that was known for too long", of.Key().KeyID, errNoKeys, 2*fetchWait)

		<-time.After(time.Minute)
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		if err := i.has(ctx, "made-up"); err == nil || time.Since(began) > time.Second {
			t.Errorf("a client that leaves: %v, after %v", err, time.Since(began))
		}
	})
}

// TestNewKeyOfSlowIssuer: as long as an issuer has not answered, it may have the key of a token.
func TestNewKeyOfSlowIssuer(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	synctest.Test(t, func(t *testing.T) {
		slow := time.Duration(0)
		i := quietIssuer(t, func(context.Context) (*keySet, error) {
			<-time.After(slow)
			return keysIn(t, of.Keys()), nil
		})
		wiretest.Check(t, i.has(t.Context(), of.Key().KeyID))
		<-time.After(time.Minute)
		slow = fetchWait + time.Second
		of.NewKey()
		if err := i.has(t.Context(), of.Key().KeyID); !errors.Is(err, errNoKeys) {
			t.Errorf("while it does not answer: %v", err)
		}
		<-time.After(time.Second)
		if err := i.has(t.Context(), of.Key().KeyID); err != nil {
			t.Errorf("when it has answered: %v", err)
		}
	})
}

// TestSlowIssuerIsAwaitedOnce: requests that find the keys old go on with them, and leave no goroutine each behind
// that waits for new ones.
func TestSlowIssuerIsAwaitedOnce(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	synctest.Test(t, func(t *testing.T) {
		slow := false
		i := quietIssuer(t, func(ctx context.Context) (*keySet, error) {
			if slow {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return keysIn(t, of.Keys()), nil
		})
		wiretest.Check(t, i.has(t.Context(), of.Key().KeyID))
		<-time.After(refreshEvery)
		slow = true
		before := runtime.NumGoroutine()
		for range 1000 {
			wiretest.Check(t, i.has(t.Context(), of.Key().KeyID))
		}
		synctest.Wait()
		if n := runtime.NumGoroutine() - before; n > 10 {
			t.Errorf("%d goroutines wait for the issuer", n)
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
			set, err := issuerAt(url+c.path, "").loadKeys(t.Context())
			if c.found != (err == nil) || c.found && len(set.keys) != 1 {
				t.Errorf("%+v, %v", set, err)
			}
		})
	}
	if set, err := issuerAt("https://nobody.example", of.URL+"/keys").loadKeys(t.Context()); err != nil || len(set.keys) != 1 {
		t.Errorf("with jwks_url: %v", err)
	}
}

// issuerAt is an issuer whose keys nobody keeps.
func issuerAt(name, jwks string) *issuer {
	return newIssuer(name, jwks, work.NewBackground(context.Canceled), slog.New(slog.DiscardHandler))
}

// TestKeySets: a key that is not for signatures is left out; a set that has no other is refused, and
// what is known stays.
func TestKeySets(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	good := strings.TrimSuffix(strings.TrimPrefix(string(of.Keys()), `{"keys":[`), `]}`)
	for name, c := range map[string]struct {
		text string
		size int // 0: refused
	}{
		"one":                        {`{"keys":[` + good + `]}`, 1},
		"others beside":              {`{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"s"},{"kty":"??"},` + good + `]}`, 1},
		"one that is broken beside":  {`{"keys":[{"kty":"EC","crv":"P-256","x":"AAAA"},` + good + `]}`, 1},
		"another form beside":        {`{"keys":["key",{"kty":"RSA","n":1},` + good + `]}`, 1},
		"with an unread certificate": {`{"keys":[` + strings.Replace(good, `{`, `{"x5c":["MIIB"],"x5t":"MDA","x5u":"http://issuer.example",`, 1) + `]}`, 1},
		"for encryption":             {`{"keys":[` + strings.Replace(good, `"use":"sig"`, `"use":"enc"`, 1) + `]}`, 0},
		"none":                       {`{"keys":[]}`, 0},
		"no set":                     {`{}`, 0},
		"no JSON":                    {`<html>`, 0},
		"a secret only":              {`{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}`, 0},
		"too large":                  {`{"keys":[` + good + `,{"kty":"` + strings.Repeat("x", maxDocument) + `"}]}`, 0},
	} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(c.text)) }))
		set, err := issuerAt("https://issuer.example", web.URL).loadKeys(t.Context())
		web.Close()
		if (err == nil) != (c.size > 0) || err == nil && len(set.keys) != c.size || err != nil && !isDefinite(err) {
			t.Errorf("%s: %+v, %v", name, set, err)
		}
	}
}

// TestKeysThatBreakOff: an issuer whose answer ends too early has not said that it has no keys.
func TestKeysThatBreakOff(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = w.Write([]byte(`{"keys":[`))
	}))
	defer web.Close()
	if set, err := issuerAt("https://issuer.example", web.URL).loadKeys(t.Context()); err == nil || isDefinite(err) {
		t.Errorf("%+v, %v", set, err)
	}
}

// TestKeysWithoutID: a token need not name the key that it is signed with, nor a key have an id.
func TestKeysWithoutID(t *testing.T) {
	of := wiretest.NewIssuer(t, "")
	nameless := keysIn(t, []byte(strings.Replace(string(of.Keys()), `"kid":"key-0"`, `"kid":""`, 1)))
	of.NewKey()
	two := keysIn(t, of.Keys())
	for name, c := range map[string]struct {
		set   *keySet
		id    string
		keys  int
		named bool
	}{
		"one of two":       {two, "key-1", 1, true},
		"any of two":       {two, "", 2, true},
		"none of two":      {two, "key-2", 0, false},
		"the nameless key": {nameless, "key-2", 1, false}, // a newer set may have it
		"nothing is named": {nameless, "", 1, true},
		"nothing is known": {nil, "", 0, false},
	} {
		keys, named := c.set.candidates(jose.Header{KeyID: c.id, Algorithm: "ES256"})
		if len(keys) != c.keys || named != c.named {
			t.Errorf("%s: %d, %v", name, len(keys), named)
		}
	}
}
