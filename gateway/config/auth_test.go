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
	text := upstreamA + "auth: {keys: [alice@example.com:" + hashA + ", \"alice@example.com:${KEY}\"]}\n"
	c, err := config.Parse("f", []byte(text), env)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Auth{Keys: []config.BearerKey{config.BearerKey("alice@example.com:" + hashA), config.BearerKey("alice@example.com:" + hashB)}}
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
		"auth: {keys: [alice]}\n",
		"auth: {keys: [" + hashA + "]}\n",
		"auth: {keys: [alice:secret]}\n",
		"auth: {keys: ['a b:" + hashA + "']}\n",
		"auth: {passthrough: {}}\n",
		"auth: {anonymous: on}\n",
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
	c.Auth.Keys = []config.BearerKey{config.BearerKey("a:" + hashA), config.BearerKey("b:" + strings.ToUpper(hashA))}
	c.Listen, c.Admin = "127.0.0.1:0", "127.0.0.1:0"
	if err := c.Validate(); err == nil || err.Error() != "auth.keys[1]: this key is already that of keys[0]" {
		t.Errorf("error: %v", err)
	}
}

// An upstream has an auth of its own, or that of all.
func TestAuthOf(t *testing.T) {
	text := `public_url: https://gw.example
auth: {trusted_header: {name: x-user, from: [10.0.0.1, 10.0.0.0/8, "fd00::/8"]}}
upstreams:
  - {name: a, url: "http://127.0.0.1:1"}
  - {name: b, url: "http://127.0.0.1:1", auth: {jwt: {issuer: "https://as.example", audiences: [x]}}, defaults: {scopes: "a b"}}
  - {name: c, url: "http://127.0.0.1:1", auth: {keys: ["alice:` + hashA + `"]}}
  - {name: d, url: "http://127.0.0.1:1", auth: {anonymous: on}}
`
	c, err := config.Parse("f", []byte(text), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	jwt := &config.JWT{Issuer: "https://as.example", Audiences: []string{"x"}}
	for i, want := range []config.Auth{
		{TrustedHeader: &config.TrustedHeader{Name: "x-user", From: []string{"10.0.0.1", "10.0.0.0/8", "fd00::/8"}}},
		{Anonymous: config.Off, JWT: jwt},
		{Anonymous: config.Off, Keys: []config.BearerKey{config.BearerKey("alice:" + hashA)}},
		{Anonymous: config.On},
	} {
		if diff := cmp.Diff(want, c.AuthOf(c.Upstreams[i])); diff != "" {
			t.Errorf("%s: -want +got:\n%s", c.Upstreams[i].Name, diff)
		}
	}
	if !c.Open() || !c.Upstreams[1].Restricted() || c.Upstreams[0].Restricted() {
		t.Error("who may call what")
	}
	c.Upstreams = c.Upstreams[:3]
	if c.Open() {
		t.Error("open without an open upstream")
	}
	if err := matchesSchema(t, text); err != nil {
		t.Error(err)
	}
}

// The files of TLS are named relative to the configuration file.
func TestTLSFiles(t *testing.T) {
	text := `tls: {cert_file: cert.pem, key_file: /keys/key.pem}
store: rediss://127.0.0.1:6379
store_tls: {ca_file: ../ca.pem}
upstreams: [{name: a, url: "https://127.0.0.1:1", tls: {ca_file: ca.pem}}]
`
	c, err := config.Parse("/etc/taskgate/config.yaml", []byte(text), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{c.TLS.CertFile, c.TLS.KeyFile, c.StoreTLS.CAFile, c.Upstreams[0].TLS.CAFile}
	want := []string{"/etc/taskgate/cert.pem", "/keys/key.pem", "/etc/ca.pem", "/etc/taskgate/ca.pem"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := matchesSchema(t, text); err != nil {
		t.Error(err)
	}
}
