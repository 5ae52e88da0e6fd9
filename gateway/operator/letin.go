package operator

import (
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
	if refusal != nil {
		h.refuseCaller(w, r, c, refusal)
		return nil
	}
	return r.WithContext(auth.WithCaller(r.Context(), c))
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
