package operator

import (
	"crypto/subtle"
	"net/http"
	"net/url"
	"strings"

	"taskgate/gateway/auth"
)

// isBelow reports whether a path is a folder or in it.
func isBelow(path, folder string) bool {
	return strings.HasPrefix(path, folder) || path+"/" == folder
}

// letIn returns the request of a caller who may ask, with that caller. It answers any other request itself, and
// returns nil.
func (h *Handler) letIn(w http.ResponseWriter, r *http.Request) *http.Request {
	if reason := h.findForeign(r); reason != "" {
		h.refuseCaller(w, r, auth.Caller{}, &auth.Refusal{Status: http.StatusForbidden, Message: reason})
		return nil
	}
	c, refusal := h.o.Method.Identify(r)
	if refusal == nil && h.opened.Load() && h.bearsLink(r) && r.Header.Get("Sec-Fetch-Site") != "" {
		refusal = &auth.Refusal{Status: http.StatusUnauthorized, Message: "the link of the log opens the console once, in one browser"}
	}
	if refusal != nil {
		h.refuseCaller(w, r, c, refusal)
		return nil
	}
	return r.WithContext(auth.WithCaller(r.Context(), c))
}

// bearsLink reports whether a request has the key of the link in the log.
func (h *Handler) bearsLink(r *http.Request) bool {
	return h.o.Link != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+h.o.Link)) == 1
}

// openConsole gives the console a key of its own for that of the link, which then stays in the history of the
// browser and is of no use there. The command line goes on with the key of the link.
func (h *Handler) openConsole(r *http.Request) (any, error) {
	if !h.bearsLink(r) || !h.opened.CompareAndSwap(false, true) {
		return Opened{}, nil
	}
	return Opened{Key: h.o.Page}, nil
}

// findForeign says why a request is that of a page which is not the console; "" for any other. A page of another
// origin cannot add a key to a request, but a browser adds by itself the credentials that a proxy in front
// reads.
func (h *Handler) findForeign(r *http.Request) string {
	origins := r.Header.Values("Origin")
	switch site := r.Header.Get("Sec-Fetch-Site"); {
	case len(origins) > 1, len(origins) == 1 && !isOwnOrigin(origins[0], r.Host):
		return "this Origin is not that of the console"
	case site != "" && site != "same-origin" && site != "none":
		return "the request is that of another page"
	case h.o.Ambient && len(origins) == 0 && r.Method != http.MethodGet && r.Method != http.MethodHead:
		return "a change needs the header Origin: that of the address which is asked"
	}
	return ""
}

// isOwnOrigin reports whether an origin is that of the host in the request.
func isOwnOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, host)
}

// refuseCaller answers a caller who is not let in.
func (h *Handler) refuseCaller(w http.ResponseWriter, r *http.Request, c auth.Caller, f *auth.Refusal) {
	h.noteEvent(r, c, "operator refused", "address", r.RemoteAddr, "status", f.Status, "reason", f.Message)
	if f.Challenge != "" {
		w.Header().Set("WWW-Authenticate", f.Challenge)
	}
	writeError(w, f.Status, f.Message)
}

func callerOf(r *http.Request) auth.Caller {
	c, _ := auth.CallerOf(r.Context())
	return c
}

// noteEvent writes a record of what a caller did, or was refused.
func (h *Handler) noteEvent(r *http.Request, c auth.Caller, event string, more ...any) {
	if h.o.Audit == nil {
		return
	}
	h.o.Audit.InfoContext(r.Context(), event, append(append([]any{"principal", c.Principal.Owner()}, more...), c.Names()...)...)
}
