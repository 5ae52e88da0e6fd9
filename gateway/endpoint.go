package gateway

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// endpoint is one upstream as clients see it, at its own path.
type endpoint struct {
	name    string
	config  *config.Upstream
	gateway *Gateway
	leg     Leg
	shim    shim.API
	tel     *telemetry
	log     *slog.Logger

	// identity is the serverInfo of modern results: the upstream's own as soon as
	// it is known, and the gateway's before, so that tasks can be read while
	// their upstream is down.
	identity atomic.Pointer[json.RawMessage]
	// dropped are the names of tools of which the log has said that they are not
	// offered.
	dropped sync.Map
	relist  relist
}

func newEndpoint(g *Gateway, u *config.Upstream, leg Leg, o Options, tel *telemetry) *endpoint {
	e := &endpoint{
		name: u.Name, config: u, gateway: g, leg: leg, shim: o.Shim, tel: tel,
		log: o.Logger.With("upstream", u.Name),
	}
	own := append([]byte(`{"name":"taskgate","version":`), jsonrpc.AppendString(nil, cmp.Or(o.Version, "dev"))...)
	raw := json.RawMessage(append(own, '}'))
	e.identity.Store(&raw)
	return e
}

// servePOST reads the message and hands it to the face of its era.
func (e *endpoint) servePOST(w http.ResponseWriter, r *http.Request, p shim.Principal) {
	body, fail := readBody(w, r, int64(e.gateway.config.MaxBody), e.gateway.config.ClientTimeout)
	if fail != nil {
		writeFailure(w, "", fail)
		return
	}
	era, msg, err := recognise(r.Header, body)
	switch {
	case err != nil:
		e.refuse(w, r, headerVersion(r.Header), msg, err)
	case era == mcp.Modern:
		e.serveModernPOST(w, r, p, msg)
	default:
		e.serveLegacyPOST(w, r, p, body, msg)
	}
}

// convertible reports whether any tool of this upstream could become a task, and
// so whether tasks are offered at all.
func (e *endpoint) convertible() bool {
	if e.config.Defaults.Tasks != config.TasksNever {
		return true
	}
	for _, rule := range e.config.Tools {
		if rule.Tasks != config.TasksNever {
			return true
		}
	}
	return false
}

// headerVersion is the version that the header names, for spelling errors of
// requests whose envelope cannot be read.
func headerVersion(h http.Header) string { return trimOWS(h.Get(mcp.HeaderProtocolVersion)) }
