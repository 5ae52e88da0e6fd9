package upstream

import (
	"context"
	"net/http"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/mcpheader"
	"taskgate/shim"
)

// modernExchange puts a request in the words of a modern version: everything
// that a legacy server knows from its session goes with it (protocol.md 2.2,
// 2.4).
func (h *HTTP) modernExchange(r shim.Request, sink shim.Sink, version string) *exchange {
	x := h.exchange(target{era: mcp.Modern, version: version}, r, sink)
	x.meta = append(make([]pair, 0, 8),
		text(mcp.MetaProtocolVersion, version),
		pair{mcp.MetaClientCapabilities, declared(r.Session.Capabilities)},
		pair{mcp.MetaClientInfo, h.cfg.clientInfo(r.Session.ClientInfo)})
	if x.level != "" {
		x.meta = append(x.meta, text(mcp.MetaLogLevel, x.level))
	}
	x.header = make(http.Header, 4)
	set(x.header, mcp.HeaderMethod, r.Method)
	if member := mcp.NameParam(r.Method); member != "" {
		// Out of the body and not out of r.Name: the server compares the two.
		if name, ok := jsonrpc.GetString(r.Params, member); ok {
			set(x.header, mcp.HeaderName, mcpheader.Encode(name))
		}
	}
	return x
}

// modern makes one attempt at a call.
func (c *call) modern(ctx context.Context, v *verdict) (shim.Reply, error) {
	x := c.h.modernExchange(c.r, c.sink, v.version)
	if c.r.Method == mcp.MethodToolsCall {
		c.h.mirror(ctx, x, c.r)
		if err := ended(ctx); err != nil {
			return shim.Reply{}, err
		}
	}
	m, err := x.run(ctx)
	rpc, refused := m.Error, false
	if se, ok := err.(*statusError); ok {
		rpc, refused = se.answer(), se.refusal()
		c.h.doubt(v, se)
	}
	switch {
	case rpc != nil:
		return c.modernError(v, rpc, refused)
	case err != nil:
		return shim.Reply{}, err
	}
	return modernReply(c.r, m)
}

// doubt drops the verdict on a server that answers as no modern one does, so
// that the next call finds out what it has become: without a JSON-RPC error, or
// with one of the codes that only legacy implementations use (X15).
func (h *HTTP) doubt(v *verdict, se *statusError) {
	if rpc := se.answer(); rpc != nil {
		code := mcp.CodeFrom(v.version, rpc.Code)
		if code > -32000 || code <= mcp.CodeReservedLast {
			return
		}
	}
	switch se.status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType:
		h.eras.forget(v)
	}
}

// modernError sorts the errors of a modern server (protocol.md 7.5). Those about
// headers and versions are ours to mend, once. refused says that the error is the
// body of a refusal; anywhere else these codes prove nothing.
func (c *call) modernError(v *verdict, rpc *jsonrpc.Error, refused bool) (shim.Reply, error) {
	code := mcp.CodeFrom(v.version, rpc.Code)
	listed := supportedVersions(rpc.Data) != nil
	if rpc.Code == mcp.CodeDraftUnsupportedVersion && listed {
		code = mcp.CodeUnsupportedVersion // as a server of the other version spells it
	}
	switch code {
	case mcp.CodeHeaderMismatch:
		forget := func() { c.h.tools.forget(c.r.Session) }
		return proved(refused, &notBegun{why: otherHeaders, forget: forget, reply: ours(rpc, "the server and the gateway disagree about the headers of the call")})
	case mcp.CodeUnsupportedVersion:
		forget := func() { c.h.changedEra(v) }
		return proved(refused && listed, &notBegun{why: otherVersion, forget: forget, reply: ours(rpc, "the server and the gateway have no protocol version in common")})
	case mcp.CodeMissingCapability:
		e := rpcError(rpc)
		e.Code = code
		return shim.Reply{Error: e}, nil
	}
	if mcp.Reserved(rpc.Code) {
		return ours(rpc, "the server answered with an error that is not for clients"), nil
	}
	if v.server.Raw == nil && code == mcp.CodeMethodNotFound {
		c.h.eras.forget(v) // it never described itself, and now knows no method
	}
	return shim.Reply{Error: rpcError(rpc)}, nil
}

// mirror writes the arguments that the tool's schema marks into headers
// (protocol.md 2.4, H12). Without the schema the call goes as it is: most tools
// mark nothing, and a server that misses a header says so before it begins.
func (h *HTTP) mirror(ctx context.Context, x *exchange, r shim.Request) {
	name, _ := jsonrpc.GetString(r.Params, "name")
	tool, ok, err := h.Tool(ctx, r.Session, name)
	if err != nil {
		h.log.Debug("tools could not be listed before a call", "err", err)
	}
	if !ok || len(tool.Params) == 0 {
		return
	}
	args, _ := jsonrpc.Get(r.Params, "arguments")
	for _, p := range tool.Params {
		value, present, err := mcpheader.Value(p.Argument(args), p)
		if err == nil && present { // a wrong type is for the server to judge
			x.header.Set(mcp.HeaderParamPrefix+p.Header, mcpheader.Encode(value))
		}
	}
}
