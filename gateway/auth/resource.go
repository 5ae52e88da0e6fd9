package auth

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"taskgate/gateway/config"
	"taskgate/internal/work"
)

// ErrNoMetadata says that a server lacks metadata of itself as a protected resource: it answers 404 or
// the like at the places for it.
const ErrNoMetadata = contentError("the server has no protected resource metadata")

// Resource is the server of an upstream as a protected resource (RFC 9728): its metadata says who gives
// out tokens for it. It is safe for concurrent use.
type Resource struct {
	server   *url.URL
	public   *url.URL // the gateway
	renamed  bool     // the server is asked by the name of the gateway (forward_host)
	from     fetcher
	log      *slog.Logger
	metadata *fetched[*document]

	mu   sync.Mutex
	hint string // where the server says that its metadata is; "" until it does
}

// document is the metadata of a server.
type document struct {
	raw      []byte
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
}

func newResource(u *config.Upstream, public string, secure *tls.Config, lasting *work.Background, log *slog.Logger) *Resource {
	server, _ := url.Parse(u.URL) // Validate has checked both
	at, _ := url.Parse(public)
	r := &Resource{server: server, public: at, renamed: u.ForwardHost == config.On, from: newFetcher(secure), log: log}
	r.metadata = newFetched(r.fetchMetadata, lasting)
	return r
}

// getDocument reads a document at the server's origin. A server that makes addresses from the name in the
// request has to make those that clients can use.
func (r *Resource) getDocument(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	if r.renamed {
		req.Host = r.public.Host
		req.Header.Set("X-Forwarded-Host", r.public.Host)
		req.Header.Set("X-Forwarded-Proto", r.public.Scheme)
	}
	return r.from.requestDocument(req)
}

// Metadata returns the server's metadata as it is. ErrNoMetadata says that the server has none; any other
// error, that asking failed.
func (r *Resource) Metadata(ctx context.Context) (json.RawMessage, error) {
	d, err := r.metadata.getAnswer(ctx)
	if err != nil {
		return nil, err
	}
	return d.raw, nil
}

// Learn takes the place that a 401 of the server names for its metadata (resource_metadata, RFC 9728
// section 5.1). Only an address at the server's own origin counts: a server or a client can send the
// gateway only there. A server whose name the gateway has taken over calls that origin by this name.
func (r *Resource) Learn(at string) {
	u, err := url.Parse(at)
	if err != nil || u.User != nil || !(sameOrigin(u, r.server) || sameOrigin(u, r.public)) {
		return
	}
	u.Scheme, u.Host, u.Fragment = r.server.Scheme, r.server.Host, ""
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hint != u.String() {
		r.hint = u.String()
		r.metadata.expireAnswer()
	}
}

// Says reports whether a 401 of the server has named the place of its metadata.
func (r *Resource) Says() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hint != ""
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host)
}

// Doubt has the metadata fetched again when it is next needed: the server has refused a token, so it may
// have another issuer by now.
func (r *Resource) Doubt() { r.metadata.distrustAnswer() }

// Is reports whether a resource name is that of the server: its address, or its origin, which stands in
// metadata that is at the origin (RFC 9728 section 3.1).
func (r *Resource) Is(resource string) bool {
	u, err := url.Parse(resource)
	if err != nil || !sameOrigin(u, r.server) || u.User != nil || u.Fragment != "" {
		return false
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	whole := path == strings.TrimSuffix(r.server.EscapedPath(), "/") && u.RawQuery == r.server.RawQuery
	return whole || path == "" && u.RawQuery == ""
}

// fetchMetadata looks for the metadata in the order of clients: at the place that a 401 has named, at the
// well-known address with the path of the server, and at the plain well-known address.
func (r *Resource) fetchMetadata(ctx context.Context) (*document, error) {
	r.mu.Lock()
	hint := r.hint
	r.mu.Unlock()
	err := error(ErrNoMetadata)
	for _, at := range r.places(hint) {
		raw, failed := r.getDocument(ctx, at)
		if failed == nil {
			var found *document
			if found, failed = parseDocument(raw); failed == nil {
				return found, nil
			}
		}
		r.log.Debug("no protected resource metadata of the server", "at", at, "err", failed)
		if !isDefinite(failed) {
			err = fmt.Errorf("the metadata of the server cannot be had: %w", failed)
		}
	}
	return nil, err
}

func (r *Resource) places(hint string) []string {
	origin, path := r.server.Scheme+"://"+r.server.Host, strings.TrimRight(r.server.EscapedPath(), "/")
	var places []string
	if hint != "" {
		places = append(places, hint)
	}
	if path != "" {
		places = append(places, origin+wellKnown+path)
	}
	return append(places, origin+wellKnown)
}

// parseDocument reads metadata. Its users check which resource it is of.
func parseDocument(raw []byte) (*document, error) {
	d := &document{raw: raw}
	if err := json.Unmarshal(raw, d); err != nil || d.Resource == "" {
		return nil, contentError("the document is no protected resource metadata")
	}
	return d, nil
}

// plain reports whether tokens of this server may be verified over plain http: it is on this machine, and
// reached by http.
func (r *Resource) plain() bool {
	return r.server.Scheme == "http" && config.IsLoopback(r.server.Hostname())
}
