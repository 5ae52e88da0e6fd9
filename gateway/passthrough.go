package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream/forward"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// This file lets clients find, through the gateway, servers that sign their callers in themselves: it passes on
// what the servers say of that, with the address of the gateway in place of theirs.

// passing returns what signs a caller in at the server. The server's answer to that goes to the client.
func (u *route) passing(r *http.Request, c auth.Caller) (by forward.Credential, seal func(string) string, token string) {
	ctx, address := r.Context(), r.RemoteAddr
	credential := c.Credential(func(status int, values []string) []string {
		if c.Signed() {
			u.resource.Doubt()
		}
		if own := u.config.PublicURL + u.endpoint.Config.Path; status == http.StatusUnauthorized && c.IsFor([]string{own}, []string{u.endpoint.Config.URL}) {
			u.wrongAudience.Do(func() {
				u.endpoint.Log.WarnContext(ctx, "the server refuses a good token that is meant for the gateway's address: it wants tokens for its own."+
					" Let the gateway take over the name of the server, or have the server accept this audience (docs/security.md#servers-that-sign-their-callers-in)", "audience", own)
			})
		}
		u.noteRefusal(ctx, address, c, &auth.Refusal{Status: status, Message: "the server has refused it"})
		return u.challenge(values)
	})
	return credential, credential.Seal, credential.Describe()
}

// challenge is the answer of a server to a caller who is to sign in (Z3), with the gateway's address of the
// metadata in place of the server's own.
func (u *route) challenge(values []string) []string {
	out, named := rewriteChallenges(values, u.page)
	if named != "" {
		u.resource.Learn(named)
	}
	return out
}

// errOtherResource says that metadata is about something else than the server.
var errOtherResource = errors.New("the resource is neither the address of the server nor the one that it has here")

// described is the metadata of a server as clients of the gateway are to see it (Z4): the address of the server
// becomes that of the gateway. Any other name is another resource's, unless the gateway has taken over the name
// of the server.
func (u *route) described(raw json.RawMessage) (json.RawMessage, error) {
	own := u.config.PublicURL + u.endpoint.Config.Path
	resource, _ := jsonrpc.GetString(raw, "resource")
	switch {
	case u.resource.Is(resource):
		return jsonrpc.With(raw, jsonrpc.AppendString(nil, own), "resource"), nil
	case strings.TrimSuffix(resource, "/") == strings.TrimSuffix(own, "/"), u.endpoint.Config.ForwardHost == config.On:
		return raw, nil
	}
	return nil, errOtherResource
}

// ofOrigin reports whether metadata is that of the gateway's whole origin: the gateway has taken over the name
// of a server that has it there.
func (u *route) ofOrigin(raw json.RawMessage) bool {
	resource, _ := jsonrpc.GetString(raw, "resource")
	return u.endpoint.Config.ForwardHost == config.On && strings.TrimSuffix(resource, "/") == u.config.PublicURL && u.endpoint.Config.Path != "/"
}

// servePage serves what clients read before they sign in, at the gateway or at a server: the metadata of
// either. It returns false for any other path.
func (t *table) servePage(w http.ResponseWriter, r *http.Request) bool {
	for _, u := range t.routes {
		switch {
		case u.metadata != nil && r.URL.Path == u.metadata.Path:
			w.Header().Set("Content-Type", mcp.TypeJSON)
			_, _ = w.Write(u.metadata.JSON) // a client that has gone needs none
			return true
		case u.resource != nil && r.URL.Path == auth.MetadataPath(u.endpoint.Config):
			u.serveResource(w, r)
			return true
		}
	}
	return t.serveFrontPage(w, r) || t.atOrigin(w, r)
}

// serveResource answers with the metadata of a server. Metadata of an origin is left out unless the server
// leads its clients to it: they would take it for that of another resource.
func (u *route) serveResource(w http.ResponseWriter, r *http.Request) {
	raw, err := u.resource.Metadata(r.Context())
	switch {
	case err != nil:
	case !u.ofOrigin(raw):
		raw, err = u.described(raw)
	case !u.resource.Says():
		err = auth.ErrNoMetadata
	}
	u.serveDocument(w, r, raw, err)
}

// serveDocument answers with a document of a server, or that the server has none. If getting it fails, the
// answer is 502.
func (u *route) serveDocument(w http.ResponseWriter, r *http.Request, raw json.RawMessage, err error) {
	switch {
	case errors.Is(err, auth.ErrNoMetadata):
		http.NotFound(w, r)
	case err != nil:
		u.endpoint.Log.WarnContext(r.Context(), "metadata of a server cannot be passed on", "err", err)
		http.Error(w, "the server's metadata cannot be had", http.StatusBadGateway)
	default:
		w.Header().Set("Content-Type", mcp.TypeJSON)
		w.Header().Set("Cache-Control", "no-store") // it says where to sign in now
		_, _ = w.Write(raw)                         // a client that has gone needs none
	}
}

// atOrigin serves the metadata of the first upstream whose server has it at the origin of the gateway. It
// returns false for any other request.
func (t *table) atOrigin(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != auth.MetadataOfOrigin || r.Method != http.MethodGet || t.serves(r.URL.Path) {
		return false
	}
	var away *route
	var failed error
	for _, u := range t.routes {
		if u.resource == nil || u.endpoint.Config.ForwardHost != config.On {
			continue
		}
		raw, err := u.resource.Metadata(r.Context())
		switch {
		case err == nil && u.ofOrigin(raw):
			u.serveDocument(w, r, raw, nil)
			return true
		case err != nil && !errors.Is(err, auth.ErrNoMetadata):
			away, failed = u, err
		}
	}
	if away != nil {
		away.serveDocument(w, r, nil, failed)
	}
	return away != nil
}

// serves reports whether a path is that of an upstream.
func (t *table) serves(path string) bool {
	return slices.ContainsFunc(t.routes, func(u *route) bool { return u.endpoint.Config.Path == path })
}
