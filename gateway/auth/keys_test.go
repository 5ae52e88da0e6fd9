package auth

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

// TestKeysAreAccepted: the scheme's case does not matter, nor does blank space
// around the key, and every key of a principal is as good.
func TestKeysAreAccepted(t *testing.T) {
	k := wiretest.Must(newKeyring(func() []config.BearerKey { c := config.Default(); wiretest.WithKeys(c); return c.Auth.Keys }()))(t)
	for value, want := range map[string]string{
		"Bearer " + wiretest.AliceKey:          "alice",
		"bearer   " + wiretest.AliceNext + " ": "alice",
		"BEARER " + wiretest.BobKey:            "bob",
	} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Header.Set("Authorization", value)
		if c, refusal := k.Identify(r); c.Principal.Subject != want || refusal != nil {
			t.Errorf("%q: %v, %v", value, c, refusal)
		}
	}
}

// TestBadKeyring: a configuration that nobody has validated cannot make a key
// that fits more than it should.
func TestBadKeyring(t *testing.T) {
	good := config.HashKey(wiretest.AliceKey)
	for name, bad := range map[string]config.BearerKey{
		"short":        config.BearerKey("alice:" + good[:62]),
		"long":         config.BearerKey("alice:" + good + "00"),
		"no hex":       config.BearerKey("alice:" + strings.Repeat("x", 64)),
		"no hash":      "alice",
		"no principal": config.BearerKey(":" + good),
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("panic: %v", p)
				}
			}()
			if _, err := newKeyring([]config.BearerKey{bad}); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// request carries one value of Authorization.
func request(values ...string) *http.Request {
	r := httptest.NewRequest("POST", "/up/mcp", nil)
	for _, value := range values {
		r.Header.Add("Authorization", value)
	}
	return r
}

// TestIdentifyAllocates keeps the check of a good key off the heap. A token that was good before
// is copied once, to be hashed.
func TestIdentifyAllocates(t *testing.T) {
	keyring := wiretest.Must(newKeyring([]config.BearerKey{wiretest.KeyOf("alice", wiretest.AliceKey)}))(t)
	i := wiretest.NewIssuer(t, "")
	tokens := startTokens(t, wiretest.WithTokens(config.Default(), i))
	for name, one := range map[string]struct {
		method Method
		r      *http.Request
		most   float64
	}{
		"keys": {keyring, request("Bearer " + wiretest.AliceKey), 0},
		"jwt":  {tokens, request("Bearer " + i.Token("alice", nil)), 1},
	} {
		measure := func() float64 {
			return testing.AllocsPerRun(100, func() {
				if _, refusal := one.method.Identify(one.r); refusal != nil {
					t.Fatal(refusal)
				}
			})
		}
		if n := min(measure(), measure(), measure()); n > one.most { // other goroutines allocate besides
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
