package gateway

import (
	"net/http"
	"slices"
	"strings"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/wire"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

const headerAuthenticate = "Www-Authenticate"

// authenticated is a handler that knows who asks. That it takes a caller is
// what keeps a new route from forgetting to ask.
type authenticated func(w http.ResponseWriter, r *http.Request, c auth.Caller)

// authenticate serves a request in the name of whoever it is from. That is
// asked of every request, whatever session it names: to hold the id of a session
// or of a task proves nothing (Z2, Z7). What it is known by ends here: what goes upstream is
// written anew, with the credentials of the configuration (Z1). Only where the server signs callers
// in itself, what a caller has come with goes on to it, and to nobody else.
func (u *route) authenticate(next authenticated) http.HandlerFunc {
	method := u.methods.Of(u.endpoint.Name)
	return func(w http.ResponseWriter, r *http.Request) {
		if !u.pace.admit(w, r, method) {
			return
		}
		if u.endpoint.Config.ForwardHost == config.On && !u.origins.listed(r.Host) {
			leaveUnread(w, r)
			u.origins.refuseHost(w, r)
			return
		}
		c, refusal := method.Identify(r)
		if refusal != nil {
			u.refused(r.Context(), r.RemoteAddr, c, refusal)
			leaveUnread(w, r)
			refuse(w, jsonrpc.ID{}, refusal)
			return
		}
		if u.audit != nil || c.Shows() {
			r = r.WithContext(auth.WithCaller(r.Context(), c))
			defer c.Leave()
		}
		if f := u.forwarded(r, c); f != nil {
			r = r.WithContext(forward.With(r.Context(), f))
		}
		next(w, r, c)
	}
}

// plain is a handler to which only the principal of a caller matters.
func plain(next func(w http.ResponseWriter, r *http.Request, p shim.Principal)) authenticated {
	return func(w http.ResponseWriter, r *http.Request, c auth.Caller) { next(w, r, c.Principal) }
}

// refuse answers a request whose caller is not known, or may not do what it asks for.
func refuse(w http.ResponseWriter, id jsonrpc.ID, f *auth.Refusal) {
	failure := wire.Refused(f.Status, f.Message)
	failure.ID = id
	if f.Challenge != "" {
		failure.Challenges = []string{f.Challenge}
	}
	wire.WriteFailure(w, "", failure)
}

// leaveUnread is called before an answer to a request whose body is not read. Left to itself
// the server would first wait for the rest of it, for as long as a stranger likes; without time
// to read, it keeps the connection only if the body has arrived already.
func leaveUnread(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	}
}

// mayCall refuses a caller that lacks a scope of a tool which it calls, or that asks about tasks with a token
// which the server has refused: what is asked about tasks does not reach the server.
func (u *route) mayCall(c auth.Caller, msg jsonrpc.Message) *auth.Refusal {
	if strings.HasPrefix(msg.Method, "tasks/") {
		return c.Doubted()
	}
	if !u.scoped || msg.Method != mcp.MethodToolsCall {
		return nil
	}
	name, _ := jsonrpc.GetString(msg.Params, mcp.NameParam(msg.Method))
	return c.Lacks(u.endpoint.Config.Tool(name).Scopes)
}

// pages serves what anybody may read, and leaves all other requests to next. Its paths cannot be
// in the route table: there they would be at odds with an upstream at /.
func (t *table) pages(next http.Handler) http.Handler {
	var pages []auth.Page
	for _, u := range t.routes { // an upstream that was removed may have lost its path to another one
		if page := t.methods.Page(u.endpoint.Name); page != nil {
			pages = append(pages, *page)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := slices.IndexFunc(pages, func(p auth.Page) bool { return p.Path == r.URL.Path })
		if at < 0 && t.relayed(w, r) {
			return
		}
		if at < 0 || r.Method != http.MethodGet && r.Method != http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", mcp.TypeJSON)
		_, _ = w.Write(pages[at].JSON) // a client that has gone needs none
	})
}
