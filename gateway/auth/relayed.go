package auth

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"taskgate/gateway/config"
)

// MetadataPath is where the gateway has the metadata of an upstream as a protected resource. Nothing
// follows for the path / (RFC 9728 section 3.1).
func MetadataPath(u *config.Upstream) string { return wellKnown + strings.TrimSuffix(u.Path, "/") }

// Doubt has the metadata fetched again when it is next needed: the server has refused a token, so
// another issuer may give them out by now. What is there holds for as long as there is none that is
// newer.
func (r *Resource) Doubt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked = time.Time{}
}

// Origin is that of the server, as an address without a path.
func (r *Resource) Origin() string { return r.server.Scheme + "://" + r.server.Host }

// Is reports whether a name of a resource is that of the server: its address, or its origin, which
// metadata has that is at the origin (RFC 9728 section 3.1).
func (r *Resource) Is(resource string) bool {
	u, err := url.Parse(resource)
	if err != nil || !sameOrigin(u, r.server) || u.User != nil || u.Fragment != "" {
		return false
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	whole := path == strings.TrimSuffix(r.server.EscapedPath(), "/") && u.RawQuery == r.server.RawQuery
	return whole || path == "" && u.RawQuery == ""
}

// AuthorizationServer returns the metadata of an authorization server at the origin of the server, at
// this path of it. Clients of 2025-03-26 look for it there, and others where a server has no
// protected resource metadata. ErrNoMetadata says that there is none.
func (r *Resource) AuthorizationServer(ctx context.Context, path string) (json.RawMessage, error) {
	raw, err := r.get(ctx, r.Origin()+path)
	switch {
	case err != nil && definite(err):
		return nil, ErrNoMetadata
	case err == nil && !json.Valid(raw):
		return nil, errors.New("the metadata is not JSON")
	}
	return raw, err
}

// Post sends the body of a client to an endpoint of an authorization server at the origin of the
// server, where one has no metadata (2025-03-26). Of the client's headers only what belongs to that
// goes along. The caller closes the body of the response.
func (r *Resource) Post(ctx context.Context, path string, body []byte, h http.Header) (*http.Response, error) {
	req, err := r.request(ctx, http.MethodPost, r.Origin()+path, strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"Accept", headerAuthorization, "Content-Type"} {
		if values := h[name]; len(values) > 0 {
			req.Header[name] = values
		}
	}
	return r.from.client.Do(req)
}
