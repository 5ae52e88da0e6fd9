package gateway

import (
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"taskgate/gateway/config"
	"taskgate/gateway/wire"
	"taskgate/internal/mcp"
)

// originGuard keeps foreign web pages out (Z10): it checks Origin, and on a loopback address also
// Host. A page may have its own name resolve to 127.0.0.1, and be of the same origin as the gateway;
// the check of Host refuses it.
type originGuard struct {
	loopback bool // the gateway listens on a loopback address
	origins  []string
	hosts    []string // allowed_hosts, and that of public_url
	log      *slog.Logger
	logged   sync.Map // the headers for which a request was refused, and logged
}

func newOriginGuard(c *config.Config, log *slog.Logger) *originGuard {
	host, _, err := net.SplitHostPort(c.Listen)
	return &originGuard{
		loopback: err == nil && config.IsLoopback(host),
		origins:  c.AllowedOrigins,
		hosts:    c.Hosts(),
		log:      log,
	}
}

// wrap is the middleware. A page of an allowed origin also gets what a browser needs to call the
// gateway (CORS).
func (g *originGuard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.hostAllowed(r.Host) {
			g.refuseHost(w, r)
			return
		}
		origins := r.Header.Values("Origin")
		if len(origins) == 0 { // no page
			next.ServeHTTP(w, r)
			return
		}
		if len(origins) > 1 || !g.originAllowed(origins[0]) {
			g.refuseHeader(w, r, "Origin", origins[0], "allowed_origins lists the pages that may call")
			return
		}
		if cors(w, r) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refuseHost answers a request by an unknown name.
func (g *originGuard) refuseHost(w http.ResponseWriter, r *http.Request) {
	g.refuseHeader(w, r, "Host", r.Host, "allowed_hosts lists the names that are served, beside that of public_url")
}

// refuseHeader answers a request because of one of its headers. The first one is logged: a proxy on the same
// machine that keeps Host, or a page, is refused with every request.
func (g *originGuard) refuseHeader(w http.ResponseWriter, r *http.Request, header, value, allowed string) {
	if _, again := g.logged.LoadOrStore(header, true); !again {
		g.log.WarnContext(r.Context(), "a request is refused because of its "+header+"; "+allowed, strings.ToLower(header), value[:min(len(value), 255)])
	}
	wire.WriteFailure(w, wire.Refused(http.StatusForbidden, "this "+header+" is not allowed: "+allowed))
}

// hostAllowed also allows the missing Host of HTTP/1.0, such as in HAProxy's health checks: every browser names one.
func (g *originGuard) hostAllowed(hostport string) bool {
	return !g.loopback || hostport == "" || config.IsLoopback(hostOf(hostport)) || g.listed(hostport)
}

// listed reports whether the configuration has the name. Only such a name is passed on to a server.
func (g *originGuard) listed(hostport string) bool {
	host := hostOf(hostport)
	if _, port, err := net.SplitHostPort(hostport); err == nil && strings.Trim(port, "0123456789") != "" {
		return false
	}
	return slices.ContainsFunc(g.hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

func (g *originGuard) originAllowed(origin string) bool {
	if slices.Contains(g.origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return g.loopback && err == nil && (u.Scheme == "http" || u.Scheme == "https") && config.IsLoopback(u.Hostname())
}

// exposeHeaders names the headers that a page may read.
const exposeHeaders = "Access-Control-Expose-Headers"

// cors answers a preflight, and returns true; otherwise it adds the headers that let a page read the
// response.
func cors(w http.ResponseWriter, r *http.Request) bool {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
	h.Add("Vary", "Origin")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		h.Set(exposeHeaders, mcp.HeaderSession+", "+mcp.HeaderProtocolVersion+", "+wire.HeaderAuthenticate+", "+wire.HeaderRetryAfter)
		return false
	}
	h.Set("Access-Control-Allow-Methods", "POST, GET, DELETE")
	h.Set("Access-Control-Max-Age", "600")
	if want := r.Header.Get("Access-Control-Request-Headers"); want != "" {
		h.Set("Access-Control-Allow-Headers", want)
	}
	w.WriteHeader(http.StatusNoContent)
	return true
}

func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}
