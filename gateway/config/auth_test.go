package config_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"taskgate/gateway/config"
)

const upstreamA = "upstreams: [{name: a, url: 'http://127.0.0.1:1'}]\n"

var (
	hashA = strings.Repeat("a1", 32)
	hashB = strings.Repeat("B2", 32)
)

// A principal may have two keys while one replaces the other, and a hash may come
// from the environment.
func TestAuthKeys(t *testing.T) {
	env := func(name string) (string, bool) { return hashB, name == "KEY" }
	text := upstreamA + "auth: {keys: [{principal: alice@example.com, sha256: " + hashA + "}, {principal: alice@example.com, sha256: \"${KEY}\"}]}\n"
	c, err := config.Parse("f", []byte(text), env)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Auth{Keys: []config.BearerKey{
		{Principal: "alice@example.com", SHA256: hashA}, {Principal: "alice@example.com", SHA256: hashB},
	}}
	if diff := cmp.Diff(want, c.Auth); diff != "" || !c.Auth.Required() {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := matchesSchema(t, text); err != nil {
		t.Error(err)
	}
	if config.Default().Auth.Required() {
		t.Error("required by default")
	}
}

// What the schema can refuse of it, it refuses.
func TestAuthSchema(t *testing.T) {
	for _, text := range []string{
		"auth: {keys: [{principal: alice}]}\n",
		"auth: {keys: [{sha256: " + hashA + "}]}\n",
		"auth: {keys: [{principal: alice, sha256: secret}]}\n",
		"auth: {keys: [{principal: 'a b', sha256: " + hashA + "}]}\n",
		"auth: {key: x}\n",
	} {
		if _, err := config.Parse("f", []byte(upstreamA+text), noEnv); err == nil {
			t.Errorf("loads: %s", text)
		}
		if matchesSchema(t, upstreamA+text) == nil {
			t.Errorf("matches the schema: %s", text)
		}
	}
}

// A configuration made by hand is held to the same.
func TestAuthValidate(t *testing.T) {
	c := config.FromFlags("http://127.0.0.1:1/mcp")
	c.Auth.Keys = []config.BearerKey{{Principal: "a", SHA256: hashA}, {Principal: "b", SHA256: strings.ToUpper(hashA)}}
	c.Listen, c.Admin = "127.0.0.1:0", "127.0.0.1:0"
	if err := c.Validate(); err == nil || err.Error() != "auth.keys[1].sha256: this key is already that of keys[0]" {
		t.Errorf("error: %v", err)
	}
}
