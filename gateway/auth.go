package gateway

import (
	"context"
	"net/http"
	"strings"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/config"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/sealed"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// authenticated is a handler that knows its caller. The type makes each new route ask for the caller.
type authenticated func(w http.ResponseWriter, r *http.Request, c auth.Caller)

// authenticate serves a request in the name of its caller. Every request is checked, in any session: the id
// of a session or of a task proves nothing (Z2, Z7). The caller's credentials end here: requests upstream are
// written anew, with the credentials of the configuration (Z1). Only a server that signs callers in itself
// gets those of the caller.
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
			u.noteRefusal(r.Context(), r.RemoteAddr, c, refusal)
			leaveUnread(w, r)
			refuse(w, jsonrpc.ID{}, refusal)
			return
		}
		c.Principal.Stranger, c.Principal.Address = c.IsStranger(), u.addresses.ShareOf(r.RemoteAddr)
		if u.options.Audit != nil || c.Shows() {
			r = r.WithContext(auth.WithCaller(r.Context(), c))
			defer c.Leave()
		}
		if u.signsIn {
			r = r.WithContext(u.endpoint.WithRights(r.Context(), rightsOf(c)))
		}
		if f := u.forwarded(r, c); f != nil {
			r = r.WithContext(forward.With(r.Context(), f))
			if f.Exposed != nil {
				w = &exposing{ResponseWriter: w, from: f.Exposed}
			}
		}
		if hold := u.options.Budget.HoldOf(u.budgetOwner(c.Principal)); hold != nil { // for the request and its answer
			defer hold.Release()
			if r.ProtoMajor == 1 { // an answer over HTTP/2 may still be read after its Write
				hold.Lend()
			}
			if hold.Take(r.Context(), headerCost(r.Header)) != nil {
				leaveUnread(w, r)
				u.tel.Refuse(w, r, wire.Request{}, wire.NoRoom())
				return
			}
			r = r.WithContext(budget.With(r.Context(), hold))
		}
		next(w, r, c)
	}
}

// strangers is the one owner, in the budget of bytes, of all callers without an owner where some callers have one: a
// token that only a server can tell from others is made up at no cost.
const strangers = "strangers"

// budgetOwner is the owner of a caller in the budget of bytes.
func (u *route) budgetOwner(p shim.Principal) string {
	if owner := p.Share().Owner; owner != "" || !u.config.SignsIn() {
		return owner
	}
	return strangers
}

// fieldCost is about what net/http needs for a field besides its text, in bytes.
const fieldCost = 128

// headerCost is what the header of a request takes, in bytes; 0 if that is not more than what each request may have.
func headerCost(h http.Header) (n int64) {
	for name, values := range h {
		for _, value := range values {
			n += int64(len(name) + len(value) + fieldCost)
		}
	}
	if n <= budget.Free {
		return 0
	}
	return n
}

// plain is a handler that only needs the principal of a caller.
func plain(next func(w http.ResponseWriter, r *http.Request, p shim.Principal)) authenticated {
	return func(w http.ResponseWriter, r *http.Request, c auth.Caller) { next(w, r, c.Principal) }
}

// refuse answers a request whose caller is unknown, or lacks a right.
func refuse(w http.ResponseWriter, id jsonrpc.ID, f *auth.Refusal) {
	failure := wire.Refused(f.Status, f.Message)
	failure.ID = id
	if f.Challenge != "" {
		failure.Challenges = []string{f.Challenge}
	}
	wire.WriteFailure(w, failure)
}

// leaveUnread is called before an answer to a request whose body stays unread. The server would first wait
// for the rest of the body, for as long as a stranger likes; with the deadline passed, it keeps the
// connection only if the body has arrived.
func leaveUnread(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	}
}

// mayRead refuses a caller that comes with a token which the server has refused, and refuses still, and asks for
// what ends at the gateway.
func (u *route) mayRead(ctx context.Context, c *auth.Caller, msg jsonrpc.Message) *auth.Refusal {
	if c.Doubted() == nil || !u.endsHere(msg) {
		return nil
	}
	return c.Reconsider(func() bool { return u.endpoint.Upstream.TakesToken(ctx) })
}

// rightsOf says which tools a caller is shown.
func rightsOf(c auth.Caller) endpoint.Rights {
	return func(t config.Tool) bool {
		return c.IsOneOf(t.Principals) && (t.MissingRights != config.RightsHide || c.Lacks(t.Scopes) == nil)
	}
}

// mayCall refuses a caller that lacks a scope of the tool which it calls. A call of a hidden tool goes on, as one of an
// unknown tool ([endpoint.Hidden]).
func (u *route) mayCall(r *http.Request, c auth.Caller, msg jsonrpc.Message) *auth.Refusal {
	if !u.restricted || msg.Method != mcp.MethodToolsCall {
		return nil
	}
	name, _ := jsonrpc.GetString(msg.Params, mcp.NameParam(msg.Method))
	if !u.endpoint.Shows(r.Context(), name) {
		if name != endpoint.TaskResultTool {
			u.noteRefusal(r.Context(), r.RemoteAddr, c, hiddenTool)
		}
		return nil
	}
	return c.Lacks(u.endpoint.Config.RightsOf(name).Scopes)
}

// hiddenTool is what the audit log says of a call of a hidden tool.
var hiddenTool = &auth.Refusal{Status: http.StatusForbidden, Message: "the tool is hidden from this caller"}

// endsHere reports whether a request may be about a task or a call of before, which the gateway answers.
func (u *route) endsHere(msg jsonrpc.Message) bool {
	if state, _ := jsonrpc.GetString(msg.Params, "requestState"); sealed.Ours(state) || strings.HasPrefix(msg.Method, "tasks/") {
		return true
	}
	name, _ := jsonrpc.GetString(msg.Params, "name")
	return msg.Method == mcp.MethodToolsCall && name == endpoint.TaskResultTool && u.endpoint.Config.WithoutTasks != config.WithoutTasksBlock
}

// pages serves the public pages, and leaves all other requests to next. Their paths would conflict in the
// route table with an upstream at /.
func (t *table) pages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead || !t.servePage(w, r) {
			next.ServeHTTP(w, r)
		}
	})
}
