package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"taskgate/gateway/auth"
	"taskgate/gateway/endpoint"
	"taskgate/gateway/legacy"
	"taskgate/gateway/modern"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/wire"
	"taskgate/internal/budget"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// route is the path of one upstream. Its requests go to the handler of their era.
type route struct {
	*table
	endpoint *endpoint.Endpoint
	modern   *modern.Handler
	legacy   *legacy.Handler
	signsIn  bool // its callers sign in
	// restricted says that some callers may not call some of its tools.
	restricted bool

	metadata *auth.Page     // that of the gateway in its place, if it takes tokens; else nil
	resource *auth.Resource // the server, if it signs callers in itself; else nil
	page     string         // where clients find the server's metadata, at the gateway

	wrongAudience sync.Once // the log says that the server wants tokens for its own address
}

// servePOST reads the message and hands it to the handler of its era.
func (u *route) servePOST(w http.ResponseWriter, r *http.Request, c auth.Caller) {
	p := c.Principal
	body, fail := wire.ReadBody(w, r, int64(u.config.MaxBody), u.config.ClientTimeout)
	if fail != nil {
		u.tel.Refuse(w, r, wire.Request{}, fail)
		return
	}
	var (
		era     mcp.Era
		msg     jsonrpc.Message
		err     error
		refusal *auth.Refusal
	)
	budget.From(r.Context()).InTurn(len(body), func() {
		era, msg, err = recognise(r.Header, body)
		refusal = u.mayCall(r, c, msg)
	})
	if err == nil && refusal == nil {
		refusal = u.mayRead(r.Context(), &c, msg)
		p.NoTasks = c.Principal.NoTasks
	}
	if err == nil && refusal != nil {
		u.noteRefusal(r.Context(), r.RemoteAddr, c, refusal)
		refuse(w, msg.ID, refusal)
		return
	}
	if err == nil {
		err = u.offers(era, msg)
	}
	forward.Of(r.Context()).Exposed.Await(msg.Method)
	switch {
	case err != nil:
		// The envelope is unreadable, so the header says how the error is spelt.
		version := wire.TrimOWS(r.Header.Get(mcp.HeaderProtocolVersion))
		u.tel.Refuse(w, r, wire.Request{Msg: msg, Version: version, Upstream: u.endpoint.Name}, err)
	case era == mcp.Modern:
		u.modern.ServePOST(w, r, p, msg)
	default:
		u.legacy.ServePOST(w, r, p, msg)
	}
}

// offers refuses a message of an era in which the upstream is not offered, as an unknown method.
func (u *route) offers(era mcp.Era, msg jsonrpc.Message) error {
	if eras := u.endpoint.Config.Eras; len(eras) == 0 || slices.Contains(eras, era.String()) {
		return nil
	}
	return &wire.Failure{ID: msg.ID, Code: mcp.CodeMethodNotFound, Status: http.StatusNotFound, Message: "this server is not offered in the " + era.String() + " era (eras)"}
}

// recognise says which era a POST belongs to (protocol.md 2.10, "Server"; the numbers are its
// steps, and step 1, GET and DELETE, is in the route table). A message that fits neither era is a
// *wire.Failure.
//
// The envelope decides, and never the header alone: a request that names a modern version somewhere
// must not slip into a session, which fixes what each modern request has to say.
func recognise(h http.Header, body []byte) (era mcp.Era, msg jsonrpc.Message, err error) {
	headerModern := slices.ContainsFunc(h.Values(mcp.HeaderProtocolVersion), func(v string) bool {
		return mcp.EraOf(wire.TrimOWS(v)) == mcp.Modern
	})
	if msg, err = jsonrpc.Parse(body); err != nil { // 2 is in it
		return mcp.NoEra, msg, wire.Unreadable(err)
	}
	envelope, odd := checkCase(msg.ID, msg.Params)
	switch {
	case msg.Kind == jsonrpc.Request && msg.ID.Long():
		return mcp.NoEra, msg, wire.InvalidRequest(msg.ID, "the id is too long")
	case odd != nil:
		return mcp.NoEra, msg, odd
	case len(msg.Raw) > maxName && isLong(msg):
		return mcp.NoEra, msg, &wire.Failure{ID: msg.ID, Code: mcp.CodeInvalidParams, Status: http.StatusBadRequest,
			Message: "the name of the method, tool, prompt, resource or task is too long"}
	case msg.Kind == jsonrpc.Result || msg.Kind == jsonrpc.ErrorResponse: // 3
		if headerModern {
			return mcp.NoEra, msg, wire.InvalidRequest(jsonrpc.ID{}, "clients do not post responses in this version")
		}
		return mcp.Legacy, msg, nil
	case envelope: // 4
		return mcp.Modern, msg, nil
	case msg.Kind == jsonrpc.Notification:
		// The headers of a modern notification are undefined in this revision (2.4), and it may
		// lack an envelope.
		if headerModern {
			return mcp.Modern, msg, nil
		}
		return mcp.Legacy, msg, nil
	case headerModern && msg.Method == mcp.MethodInitialize: // 5
		return mcp.NoEra, msg, &wire.Failure{ID: msg.ID, Code: mcp.CodeHeaderMismatch, Status: http.StatusBadRequest,
			Message: "initialize belongs to the versions before 2026; the header names a modern one"}
	case headerModern: // 6
		return mcp.NoEra, msg, &wire.Failure{ID: msg.ID, Code: mcp.CodeInvalidParams, Status: http.StatusBadRequest,
			Message: "params._meta lacks " + mcp.MetaProtocolVersion}
	}
	return mcp.Legacy, msg, nil // 7
}

// maxName bounds the name of a method, tool, prompt or task in bytes. Names are kept apart from their message: in
// records, reports, logs and metrics.
const maxName = 1 << 10

// isLong reports whether the method of a message, or what it names, has a longer name than any server has.
func isLong(msg jsonrpc.Message) bool {
	if len(msg.Method) > maxName {
		return true
	}
	param := mcp.NameParam(msg.Method)
	if param == "" {
		return false
	}
	var name [1]json.RawMessage
	msg.Pick([]string{param}, name[:])
	most := maxName
	if param == "uri" {
		most = endpoint.MaxURI
	}
	if len(name[0]) > len(`\u0000`)*most+len(`""`) { // however it is spelt
		return true
	}
	text, _ := jsonrpc.String(name[0])
	return len(text) > most
}
