package auth

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

// trustedOf is the method of an upstream that believes the header X-User of 10.0.0.0/8 and of
// one other address.
func trustedOf(t *testing.T, name string) Method {
	t.Helper()
	c := config.FromFlags("http://127.0.0.1:1/")
	c.Auth.TrustedHeader = &config.TrustedHeader{Name: name, From: []string{"10.0.0.0/8", "2001:db8::1"}}
	wiretest.Check(t, c.Validate())
	m := wiretest.Must(New(c, Options{Logger: slog.New(slog.DiscardHandler)}))(t)
	return m.Of("mcp")
}

// TestTrustedHeader: the header is believed of the proxy in front, and whoever is not that is
// refused, with or without it.
func TestTrustedHeader(t *testing.T) {
	m := trustedOf(t, "x-user")
	for name, c := range map[string]struct {
		from   string
		values []string
		status int // 0: let in
	}{
		"the proxy":               {"10.1.2.3:4711", []string{"alice"}, 0},
		"its other address":       {"[2001:db8::1]:4711", []string{"alice"}, 0},
		"IPv4 within IPv6":        {"[::ffff:10.1.2.3]:4711", []string{" alice\t"}, 0},
		"anybody":                 {"192.0.2.1:4711", []string{"alice"}, 403},
		"anybody without it":      {"192.0.2.1:4711", nil, 403},
		"its neighbour":           {"[2001:db8::2]:4711", []string{"alice"}, 403},
		"no address":              {"@", []string{"alice"}, 403},
		"the proxy names nobody":  {"10.1.2.3:4711", nil, 403},
		"an empty name":           {"10.1.2.3:4711", []string{" "}, 403},
		"a long name":             {"10.1.2.3:4711", []string{strings.Repeat("a", maxName+1)}, 403},
		"two":                     {"10.1.2.3:4711", []string{"alice", "bob"}, 400},
		"the same name two times": {"10.1.2.3:4711", []string{"alice", "alice"}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			r := request("Bearer something")
			r.RemoteAddr = c.from
			r.Header["X-User"] = c.values
			r.Header["X-Forwarded-For"] = []string{"10.1.2.3"}
			got, refusal := m.Identify(r)
			switch {
			case c.status != 0 && (refusal == nil || refusal.Status != c.status || refusal.Challenge != ""):
				t.Errorf("%v", refusal)
			case c.status == 0 && (refusal != nil || got.Principal != newPrincipal("header", "X-User", "alice")):
				t.Errorf("%v, %v", got, refusal)
			}
		})
	}
}

// TestPrincipalsAreApart: what two methods know a caller by makes two principals, and none is
// that of a key or of anybody.
func TestPrincipalsAreApart(t *testing.T) {
	seen := map[string]bool{"": true, "alice": true}
	for _, p := range []string{
		newPrincipal("header", "X-User", "alice").Subject,
		newPrincipal("header", "X-Email", "alice").Subject,
		newPrincipal("header", "X-User", "bob").Subject,
		newPrincipal("jwt", "X-User", "alice").Subject,
		newPrincipal("jwt", "X-Useralice").Subject,
		newPrincipal("jwt", "X-User", "sub", "alice").Subject,
	} {
		if seen[p] || !strings.Contains(p, ":") {
			t.Errorf("%s is another's", p)
		}
		seen[p] = true
	}
	var none anybody
	if c, refusal := none.Identify(&http.Request{}); refusal != nil || c.Principal.Owner() != "" {
		t.Errorf("anybody is %v, %v", c, refusal)
	}
}
