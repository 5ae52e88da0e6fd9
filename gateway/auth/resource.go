package auth

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"taskgate/gateway/config"
	"taskgate/internal/work"
)

// ErrNoMetadata says that a server has no metadata of itself as a protected resource: it
// answers where that could be, and has none there.
var ErrNoMetadata = errors.New("the server has no protected resource metadata")

// Resource is the server of an upstream as a protected resource (RFC 9728): its metadata says
// who gives out tokens for it. The metadata is fetched when it is first needed, and again
// after refresh. While it cannot be had again, the old one holds. It may be used from any
// goroutine.
type Resource struct {
	server  *url.URL
	public  *url.URL // the gateway
	renamed bool     // the server is asked by the name of the gateway (forward_host)
	from    fetcher
	refresh time.Duration
	log     *slog.Logger
	asking  singleflight.Group
	work    *work.Background

	mu     sync.Mutex
	hint   string    // where the server says that its metadata is; "" for nowhere
	known  *document // the last that there was; nil for none
	err    error     // of the last attempt
	looked time.Time // when that was; zero for never
}

// document is the metadata of a server.
type document struct {
	raw      []byte
	sum      [sha256.Size]byte
	Resource string   `json:"resource"`
	Servers  []string `json:"authorization_servers"`
}

func newResource(u *config.Upstream, public string, secure *tls.Config, refresh time.Duration, lasting *work.Background, log *slog.Logger) (*Resource, error) {
	server, err := url.Parse(u.URL)
	if err != nil || server.Host == "" {
		return nil, errors.New("the server has no address") // what is wrong is not repeated: it may hold a secret
	}
	at, err := url.Parse(public)
	if err != nil {
		return nil, err
	}
	return &Resource{
		server: server, public: at, renamed: u.ForwardHost == config.On,
		from: newFetcher(secure), refresh: refresh, log: log, work: lasting,
	}, nil
}

// request makes a request to the server's origin. A server that makes addresses of the name by which
// it is asked has to make those that clients can use.
func (r *Resource) request(ctx context.Context, method, at string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, at, body)
	if err == nil && r.renamed {
		req.Host = r.public.Host
		req.Header.Set("X-Forwarded-Host", r.public.Host)
		req.Header.Set("X-Forwarded-Proto", r.public.Scheme)
	}
	return req, err
}

// get reads a document at the server's origin.
func (r *Resource) get(ctx context.Context, at string) ([]byte, error) {
	req, err := r.request(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	return r.from.do(req)
}

// Metadata returns the server's metadata as it is. ErrNoMetadata says that there is none; any
// other error, that it cannot be had at the moment.
func (r *Resource) Metadata(ctx context.Context) (json.RawMessage, error) {
	d, err := r.document(ctx)
	if err != nil {
		return nil, err
	}
	return d.raw, nil
}

// Learn takes where a 401 of the server says that its metadata is (resource_metadata, RFC 9728
// section 5.1). Only an address at the server's own origin counts: no other one is ever
// fetched because a server, or a client, has named it. A server whose name the gateway has taken
// over calls that origin by this name.
func (r *Resource) Learn(at string) {
	u, err := url.Parse(at)
	if err != nil || u.User != nil || !(sameOrigin(u, r.server) || sameOrigin(u, r.public)) {
		return
	}
	u.Scheme, u.Host, u.Fragment = r.server.Scheme, r.server.Host, ""
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hint != u.String() {
		r.hint, r.looked = u.String(), time.Time{}
	}
}

// Says reports whether a 401 of the server has said where its metadata is.
func (r *Resource) Says() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hint != ""
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host)
}

// document returns the metadata, fetched by then if it is old.
func (r *Resource) document(ctx context.Context) (*document, error) {
	if d, err, fresh := r.latest(); fresh {
		return d, err
	}
	return work.Once(ctx, r.work, &r.asking, "", func(ctx context.Context) (*document, error) {
		if d, err, fresh := r.latest(); fresh { // since
			return d, err
		}
		return r.fetch(ctx)
	})
}

// latest is what is known, and whether that is new enough.
func (r *Resource) latest() (d *document, err error, fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pause := r.refresh
	if r.err != nil && !errors.Is(r.err, ErrNoMetadata) {
		pause = retryFirst
	}
	if r.looked.IsZero() || time.Since(r.looked) >= pause {
		return nil, nil, false
	}
	if r.known != nil {
		return r.known, nil, true
	}
	return nil, r.err, true
}

// fetch looks for the metadata where it may be, in the order of clients: where a 401 has said,
// at the well-known address with the path of the server, and at that without.
func (r *Resource) fetch(ctx context.Context) (*document, error) {
	ctx, stop := context.WithTimeout(ctx, fetchTimeout)
	defer stop()
	r.mu.Lock()
	hint := r.hint
	r.mu.Unlock()
	var found *document
	err := ErrNoMetadata
	for _, at := range r.places(hint) {
		raw, failed := r.get(ctx, at)
		if failed == nil {
			if found, failed = parseDocument(raw); failed == nil {
				err = nil
				break
			}
		}
		r.log.Debug("no protected resource metadata of the server", "at", at, "err", failed)
		if !definite(failed) {
			err = fmt.Errorf("the metadata of the server cannot be had: %w", failed)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if hint == r.hint {
		r.looked = time.Now()
	}
	r.err = err
	switch {
	case err == nil && (r.known == nil || r.known.sum != found.sum):
		r.known = found
	case errors.Is(err, ErrNoMetadata):
		r.known = nil
	}
	if r.known != nil {
		return r.known, nil
	}
	return nil, err
}

// places are the addresses to look at.
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

// parseDocument reads metadata. Which resource it is of is looked at by who uses it.
func parseDocument(raw []byte) (*document, error) {
	d := &document{raw: raw, sum: sha256.Sum256(raw)}
	if err := json.Unmarshal(raw, d); err != nil || d.Resource == "" {
		return nil, contentError("the document is no protected resource metadata")
	}
	return d, nil
}

// plain reports whether tokens of this server may be verified without TLS: it is reached
// without, on this machine.
func (r *Resource) plain() bool {
	return r.server.Scheme == "http" && config.IsLoopback(r.server.Hostname())
}
