package gateway

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestChallengesAreRewritten: a challenge reaches clients with what they need of it, and with the gateway's metadata.
func TestChallengesAreRewritten(t *testing.T) {
	const page = "https://gateway.example/p"
	const own = `Bearer resource_metadata="` + page + `"`
	for given, want := range map[string][]string{
		``: nil, `Bearer`: {own}, `bearer`: {`bearer resource_metadata="` + page + `"`},
		`Bearer realm="a"`:                                                              {own + `, realm="a"`},
		`Bearer resource_metadata="http://s/m"`:                                         {own},
		`Bearer scope="a b", resource_metadata = "http://s/m" , error="x"`:              {own + `, error="x", scope="a b"`},
		`Bearer Resource_Metadata=http://s/m,scope=a`:                                   {own + `, scope="a"`},
		`Bearer error_description="say \"no\" \\", unknown=1, error=insufficient_scope`: {own + `, error="insufficient_scope", error_description="say \"no\" \\"`},
		`Bearer acr_values="high", max_age=60, error_uri="https://s/e"`:                 {own + `, error_uri="https://s/e", acr_values="high", max_age="60"`},
		`Basic realm="x", Bearer resource_metadata="http://s/m", DPoP algs="ES256"`:     {own, `DPoP resource_metadata="` + page + `", algs="ES256"`, `Basic realm="x"`},
		`Negotiate YWJj/+==, Bearer, Basic realm = "x"`:                                 {own, `Negotiate YWJj/+==`, `Basic realm = "x"`},
		`Negotiate`: {`Negotiate`}, `Negotiate abc`: {`Negotiate abc`},
		// None of these may reach a client that searches for the parameter.
		`Bearer realm="resource_metadata=http://s/m, x", resource_metadata="http://s/m"`: {own},
		`Bearer realm="a"resource_metadata="http://s/m"`:                                 {own + `, realm="a"`},
		`Bearer realm=a;resource_metadata="http://s/m"`:                                  {own + `, realm="a"`},
		`Bearer xresource_metadata="http://s/m", error_description="cut`:                 {own},
		`Bearer scope="Resource_Metadata=http://s/m mcp:use"`:                            {own},
		`Basic realm="resource_metadata=http://s/m"`:                                     nil,
		`resource_metadata="http://s/m"`:                                                 nil,
		`Bearer="resource_metadata=http://s/m"`:                                          nil,
	} {
		got, named := rewriteChallenges([]string{given}, page)
		if !slices.Equal(got, want) {
			t.Errorf("%s\n got %q\nwant %q", given, got, want)
		}
		if named != "" && named != "http://s/m" {
			t.Errorf("%s: the server has named %q", given, named)
		}
	}
	got, _ := rewriteChallenges([]string{`Basic realm="x"`, `Bearer realm="y"`}, page)
	if want := []string{own + `, realm="y"`, `Basic realm="x"`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q: clients take the first", got, want)
	}
}

// loose are patterns by which clients find the parameter: that of the TypeScript SDKs, and a looser one.
var loose = []*regexp.Regexp{
	regexp.MustCompile(`resource_metadata=(?:"([^"]+)"|([^\s,]+))`),
	regexp.MustCompile(`(?i)resource_metadata\s*=\s*"?([^"\s,;]+)`),
}

// FuzzChallenges: whatever a server says, clients find the gateway's metadata or none, and a rewritten challenge is
// rewritten to itself.
func FuzzChallenges(f *testing.F) {
	for _, seed := range []string{
		`Bearer realm="resource_metadata=http://s/m, x"`, `Basic a=b, Bearer resource_metadata=http://s/m`, `DPoP algs="E", x`, `Bearer a="\\"`,
	} {
		f.Add(seed, `Bearer`)
	}
	const page = "https://gateway.example/p"
	f.Fuzz(func(t *testing.T, one, two string) {
		out, _ := rewriteChallenges([]string{one, two}, page)
		for _, pattern := range loose {
			for _, found := range pattern.FindAllStringSubmatch(strings.Join(out, ", "), -1) {
				if at := strings.Join(found[1:], ""); at != page {
					t.Fatalf("%q, %q become %q: a client finds %q", one, two, out, at)
				}
			}
		}
		if again, _ := rewriteChallenges(out, page); !slices.Equal(again, out) {
			t.Fatalf("%q is rewritten to %q", out, again)
		}
	})
}
