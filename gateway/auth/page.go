package auth

import (
	"encoding/json"
	"strings"

	"taskgate/gateway/config"
)

// wellKnown is where the metadata of a protected resource is, before the path of the resource
// (RFC 9728 section 3.1).
const wellKnown = "/.well-known/oauth-protected-resource"

// MetadataOfOrigin is where the metadata of a resource without a path is.
const MetadataOfOrigin = wellKnown

// Page is the metadata of one upstream as a protected resource (Z4).
type Page struct {
	Path string // at which the gateway serves it
	URL  string // by which clients find it
	JSON []byte
}

// describeResource makes the metadata of an upstream that takes tokens: its address as a resource,
// and the issuer of its tokens.
func describeResource(public string, u *config.Upstream, j *config.JWT) *Page {
	at := MetadataPath(u)
	// Strings and lists of strings can always be marshalled.
	body, _ := json.Marshal(struct {
		Resource string   `json:"resource"`
		Servers  []string `json:"authorization_servers"`
		Scopes   []string `json:"scopes_supported,omitempty"`
		Bearer   []string `json:"bearer_methods_supported"`
	}{public + u.Path, []string{j.Issuer}, j.Scopes, []string{"header"}})
	return &Page{Path: at, URL: public + at, JSON: body}
}

// MetadataPath is where the gateway has the metadata of an upstream as a protected resource. An
// upstream at the path / adds nothing to the well-known path (RFC 9728 section 3.1).
func MetadataPath(u *config.Upstream) string { return wellKnown + strings.TrimSuffix(u.Path, "/") }
