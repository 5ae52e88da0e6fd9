package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// verdict is what is known of the eras that a server speaks.
type verdict struct {
	// era is what the server has answered to server/discover; NoEra before it was asked.
	era     mcp.Era
	version string // modern: the version to speak
	mute    bool   // modern: it was recognised by an error, and has not described itself
	// shaken says that a legacy handshake has succeeded under it: if one fails later, the
	// server has become another.
	shaken atomic.Bool
}

func legacyVerdict() *verdict { return &verdict{era: mcp.Legacy} }

// aloneFor is how long a server that has refused a handshake is not asked for another one.
const aloneFor = mostFresh

// speaks is the era in which the server is spoken to for a session: in that of the client
// as long as nothing is known against it. Of a server that speaks both eras all clients have
// their own, unless the operator has decided. It is NoEra where the server has to be asked.
func (e *eras) speaks(v *verdict, s shim.Session) mcp.Era {
	switch {
	case e.wire.cfg.Era == EraLegacy:
		return mcp.Legacy
	case e.wire.cfg.Era == EraAuto && s.Legacy && time.Now().UnixNano() >= e.alone.Load():
		return mcp.Legacy
	}
	return v.era
}

// untried reports whether this session needs to know whether the server takes a handshake, and
// nobody knows yet. (That a server lists no legacy version does not tell: it may, and need not.)
func (e *eras) untried(v *verdict, s shim.Session) bool {
	return v.era != mcp.Legacy && e.wire.cfg.Era != EraLegacy && e.speaks(v, s) == mcp.Legacy && !v.shaken.Load()
}

// eras remembers the verdict on a server until something contradicts it, and what the server
// says of itself. There is one per client, and so one per process and endpoint.
type eras struct {
	wire    *wire
	work    *work.Background
	tools   *tools
	seen    remembered[Server] // by the capabilities that were declared, and the client's era
	probing singleflight.Group
	// alone is until when the server is taken to speak the modern era alone, since it has
	// refused a handshake: nanoseconds since 1970.
	alone atomic.Int64

	mu  sync.Mutex // guards cur
	cur *verdict   // nil before there is one
}

// maxSeen bounds seen, unless the configuration does: the capabilities are the clients'.
const maxSeen = 256

// get returns the verdict once the server has answered server/discover. It is asked for this
// session if it has not. All who need that wait for the same answer, unless the server could say
// something else to them.
func (e *eras) get(ctx context.Context, s shim.Session) (*verdict, error) {
	if v := e.known(); v.era != mcp.NoEra {
		return v, nil
	}
	return work.Once(ctx, e.work, &e.probing, clientsLike(ctx, s).of(), func(ctx context.Context) (*verdict, error) {
		if v := e.known(); v.era != mcp.NoEra {
			return v, nil
		}
		return e.recognise(ctx, s)
	})
}

// recognise asks by server/discover, and takes note of what comes of it.
func (e *eras) recognise(ctx context.Context, s shim.Session) (*verdict, error) {
	v, srv, err := e.probe(ctx, s)
	if err != nil || v.era == mcp.Legacy {
		e.alone.Store(0)
	}
	if err != nil {
		return v, err
	}
	e.mu.Lock()
	if c := e.cur; c == nil || c.era != v.era || c.version != v.version || c.mute != v.mute {
		e.wire.log.Info("upstream recognised", "era", v.era.String(), "version", v.version)
		v.shaken.Store(c != nil && c.era == mcp.NoEra && c.shaken.Load())
		e.cur = v
	}
	v = e.cur
	e.mu.Unlock()
	if srv.Raw != nil {
		s.Legacy = false // who begins in the legacy era may hear something else
		e.note(ctx, s, srv)
	}
	return v, nil
}

// known is what is known of the server, which may be nothing.
func (e *eras) known() *verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cur == nil {
		e.cur = &verdict{}
	}
	return e.cur
}

// forget drops a verdict that an answer of the server contradicts.
func (e *eras) forget(v *verdict) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cur == v {
		e.cur = nil
	}
}

// changed has everything asked for again of a server that has become another.
func (e *eras) changed(v *verdict) {
	e.forget(v)
	e.seen.doubt(0, every)
	e.tools.lists.doubt(0, every)
}

// note remembers what the server says of itself to clients like this one. A server that says
// something else than before was replaced: what it has said to others is in doubt then, and
// so are its tools, and that it knows one era only.
func (e *eras) note(ctx context.Context, s shim.Session, srv Server) {
	k := clientsLike(ctx, s)
	before := e.seen.find(k)
	e.seen.put(k, srv, freshness(srv.Raw))
	if srv.Era == mcp.Legacy {
		e.alone.Store(0) // it takes handshakes
	}
	if before == nil || before.value.like(srv) {
		return
	}
	e.seen.doubt(leastFresh, func(other sessionKey) bool { return other != k })
	e.tools.lists.doubt(leastFresh, every)
	e.alone.Store(0)
	if v := e.known(); v.era == mcp.Legacy {
		e.forget(v)
	}
}

// setAlone takes note that the server has refused a handshake.
func (e *eras) setAlone() { e.alone.Store(time.Now().Add(aloneFor).UnixNano()) }

// like reports whether two answers are of one server, as far as they tell.
func (s Server) like(other Server) bool {
	return s.Version == other.Version && s.Instructions == other.Instructions &&
		fingerprint(s.Capabilities) == fingerprint(other.Capabilities) && fingerprint(s.Info) == fingerprint(other.Info)
}

// settle finds out in which era the server is spoken to for this session, where that is not
// known yet: in that of the client, if the server takes it. One session tries, and the others
// that need to know wait for it. No tool runs in any of this.
func (h *HTTP) settle(ctx context.Context, s shim.Session) (*verdict, mcp.Era, error) {
	v := h.eras.known()
	if h.eras.untried(v, s) {
		_, err := work.Once(ctx, h.work, &h.eras.probing, "handshake"+clientsLike(ctx, s).of(), func(ctx context.Context) (struct{}, error) {
			if v := h.eras.known(); h.eras.untried(v, s) {
				return struct{}{}, h.try(ctx, v, s)
			}
			return struct{}{}, nil
		})
		if err != nil {
			return v, mcp.NoEra, err
		}
		v = h.eras.known()
	}
	if era := h.eras.speaks(v, s); era != mcp.NoEra {
		return v, era, nil
	}
	v, err := h.eras.get(ctx, s)
	if err != nil {
		return nil, mcp.NoEra, err
	}
	return v, h.eras.speaks(v, s), nil
}

// try opens the session of a client that begins so. That the server refuses it is no error if
// it speaks the modern era.
func (h *HTTP) try(ctx context.Context, v *verdict, s shim.Session) error {
	ses := h.sessions.acquire(s)
	defer ses.release()
	l, err := ses.connect(ctx)
	if err != nil {
		if !h.eras.doubtHandshake(v, err) {
			return err
		}
		if now, asked := h.eras.get(ctx, s); asked != nil || now.era != mcp.Modern {
			return handshakeError(err)
		}
		h.eras.setAlone() // whatever the server says of itself now
		return nil
	}
	v.shaken.Store(true)
	if l.server.Raw != nil { // it may be what another replica was told
		h.eras.note(ctx, s, l.server)
	}
	return nil
}

// describe asks the server what it is, for clients like that of s.
func (h *HTTP) describe(ctx context.Context, s shim.Session) (Server, time.Duration, error) {
	e, own := h.eras, clientsLike(ctx, s)
	modern := own // a modern server says the same to clients of both eras
	modern.legacy = false
	var last error
	for range 2 { // once more if the server turns out to be of the other era
		v, era, err := h.settle(ctx, s)
		if err == nil && era == mcp.Modern && !v.mute && !e.seen.find(modern).fresh() {
			if v, err = e.recognise(ctx, s); err == nil {
				era = e.speaks(v, s)
			}
		}
		if err != nil {
			return Server{}, 0, err
		}
		if era == mcp.Modern {
			if now := e.seen.find(modern); now.fresh() {
				return now.value, time.Until(now.until), nil
			}
			e.forget(v)
			return Server{}, 0, protocolError("the server does not describe itself", nil)
		}
		if now := e.seen.find(own); now.fresh() && now.value.Era == mcp.Legacy {
			return now.value, time.Until(now.until), nil // the handshake of settle has told it
		}
		srv, err := h.sessions.describe(ctx, s)
		if err == nil {
			v.shaken.Store(true)
			return srv, freshness(srv.Raw), nil
		}
		if !e.doubtHandshake(v, err) {
			return srv, 0, err
		}
		last = handshakeError(err)
	}
	return Server{}, 0, last
}

// probe finds out the era (protocol.md 2.10): discover first, in each modern version that is
// known until one is agreed on. It returns as well what discover has said; Raw is nil for
// nothing.
func (e *eras) probe(ctx context.Context, s shim.Session) (*verdict, Server, error) {
	if e.wire.cfg.Era == EraLegacy {
		return legacyVerdict(), Server{}, nil
	}
	v := &verdict{era: mcp.Modern, version: mcp.Version20260728}
	for range mcp.NamesOf(mcp.Modern) {
		m, err := e.discover(ctx, v.version, s)
		next, err := e.judge(v, m, err)
		switch {
		case err != nil:
			return nil, Server{}, passOn(ctx, err)
		case next.era == mcp.Legacy && e.wire.cfg.Era == EraModern: // the operator knows better
			return nil, Server{}, protocolError("the server does not speak a modern version of MCP, as configured", nil)
		case next.era == mcp.Legacy:
			return next, Server{}, nil
		case next.version == v.version && next.mute:
			return next, Server{}, nil
		case next.version == v.version:
			return next, discovered(next.version, m.Result), nil
		}
		v = next
	}
	return nil, Server{}, protocolError("the server and the gateway have no protocol version in common", nil)
}

// discover asks a server what it speaks, in a modern version and in the name of a client. A refusal says nothing
// of the client's token, unless the client gets it.
func (e *eras) discover(ctx context.Context, version string, s shim.Session) (jsonrpc.Message, error) {
	ctx, cancel := e.wire.slow(unheard(ctx))
	defer cancel()
	x := e.wire.modernExchange(shim.Request{Method: mcp.MethodDiscover, Session: s}, discard{}, version)
	x.uncancelled = true
	return x.run(ctx)
}

// discovered is what a DiscoverResult says.
func discovered(version string, result json.RawMessage) Server {
	srv := Server{Era: mcp.Modern, Version: version, Raw: raw(result)}
	srv.Capabilities, _ = jsonrpc.Get(srv.Raw, "capabilities")
	srv.Info, _ = jsonrpc.Get(srv.Raw, "_meta", mcp.MetaServerInfo)
	srv.Instructions, _ = jsonrpc.GetString(srv.Raw, "instructions")
	return srv
}

// judge reads a verdict off the answer to a discover sent as v says. A modern
// verdict with another version than v's says to ask again in that one.
func (e *eras) judge(v *verdict, m jsonrpc.Message, err error) (*verdict, error) {
	rpc := m.Error
	if err != nil {
		se, ok := err.(*statusError)
		if !ok {
			return nil, public(err) // no answer, no verdict
		}
		if rpc = se.rpc; rpc == nil || se.answer() == nil {
			return judgeStatus(se)
		}
		if se.status >= 500 && rpc.Code != mcp.CodeMethodNotFound {
			return nil, se.upstream()
		}
	}
	if rpc != nil {
		return judgeError(v, rpc)
	}
	return judgeResult(v, m.Result)
}

// judgeStatus reads an HTTP error without a JSON-RPC error. Authorization,
// overload and failure say nothing about the era, nor does a redirect; any other
// foreign answer is how an older server receives an unknown first message.
func judgeStatus(se *statusError) (*verdict, error) {
	s := se.status
	if s == http.StatusUnauthorized || s == http.StatusForbidden || s == http.StatusTooManyRequests || s >= 500 || s >= 300 && s < 400 {
		return nil, se.upstream()
	}
	return legacyVerdict(), nil
}

// judgeError reads a JSON-RPC error. -32601 is legacy whatever the status: a
// modern server has to implement discover. The codes of the draft 2026-06-30
// are also used by others (X15), so they count only with the list of versions
// that belongs to them.
func judgeError(v *verdict, rpc *jsonrpc.Error) (*verdict, error) {
	switch rpc.Code {
	case mcp.CodeUnsupportedVersion, mcp.CodeDraftUnsupportedVersion:
		supported := supportedVersions(rpc.Data)
		if rpc.Code == mcp.CodeDraftUnsupportedVersion && supported == nil {
			return legacyVerdict(), nil
		}
		return choose(v, supported)
	case mcp.CodeHeaderMismatch, mcp.CodeMissingCapability:
		return &verdict{era: mcp.Modern, version: v.version, mute: true}, nil
	}
	return legacyVerdict(), nil
}

// choose picks a version out of those a server refuses others for. None of ours
// but a legacy one: the server keeps that era beside its own.
func choose(v *verdict, supported []string) (*verdict, error) {
	for _, name := range mcp.NamesOf(mcp.Modern) {
		if slices.Contains(supported, name) && name != v.version {
			return &verdict{era: mcp.Modern, version: name}, nil
		}
	}
	for _, name := range supported {
		if mcp.EraOf(name) == mcp.Legacy {
			return legacyVerdict(), nil
		}
	}
	return nil, protocolError("the server and the gateway have no protocol version in common", nil)
}

// judgeResult reads a DiscoverResult. One that lists no modern version of ours
// comes from a server that serves us with sessions only (go-sdk 1.8.0 behind a
// stateful handler says so).
func judgeResult(v *verdict, result json.RawMessage) (*verdict, error) {
	supported := supportedVersions(result)
	switch {
	case supported == nil:
		return legacyVerdict(), nil // not a DiscoverResult
	case !slices.Contains(supported, v.version):
		return choose(v, supported)
	}
	return v, nil
}

// supportedVersions reads the list out of a DiscoverResult (supportedVersions)
// or the data of -32022 (supported); nil if there is none.
func supportedVersions(obj json.RawMessage) []string {
	for _, name := range []string{"supportedVersions", "supported"} {
		list, ok := jsonrpc.Get(obj, name)
		var names []string
		if ok && json.Unmarshal(list, &names) == nil && names != nil {
			return names
		}
	}
	return nil
}

// contradicts reports whether an answer to a legacy message is one that only a
// modern server gives: a refusal, or the error of a handshake, in which no tool
// runs. A version error counts only with the list that belongs to it.
func contradicts(err error) bool {
	if se, ok := err.(*statusError); ok && !se.refusal() {
		return false
	}
	rpc := rpcOf(err)
	switch {
	case rpc == nil:
		return false
	case rpc.Code == mcp.CodeUnsupportedVersion || rpc.Code == mcp.CodeDraftUnsupportedVersion:
		return supportedVersions(rpc.Data) != nil
	}
	return rpc.Code == mcp.CodeHeaderMismatch
}

// rpcOf finds the JSON-RPC error in an error, whatever it came in.
func rpcOf(err error) *jsonrpc.Error {
	if se, ok := err.(*statusError); ok {
		return se.rpc
	}
	rpc, _ := err.(*jsonrpc.Error)
	return rpc
}

// doubtHandshake decides, after a handshake failed, whether the server should be probed
// again at once: it must be if it answers as a modern one, or if handshakes used
// to succeed. In any case the verdict is not kept if the server gave an answer
// that is none of MCP's, or if no handshake has ever confirmed it: a modern server that is
// in trouble may look like a legacy one.
//
// A server that refuses its first handshake, and is not known to be a legacy one, may speak the
// modern era: it is asked that, and is spoken to as what it is.
func (e *eras) doubtHandshake(v *verdict, err error) bool {
	if v.era != mcp.Legacy && e.wire.cfg.Era != EraLegacy && !v.shaken.Load() {
		ue, ok := errors.AsType[*shim.UpstreamError](public(err))
		refused := contradicts(err) || ok && ue.Kind == kindProtocol
		if refused {
			e.setAlone()
		}
		return refused
	}
	rpc, _ := errors.AsType[*jsonrpc.Error](err)
	if contradicts(err) || rpc != nil && rpc.Code == mcp.CodeMethodNotFound {
		e.changed(v) // it may have been silent, and not legacy
		return true
	}
	if ue, ok := errors.AsType[*shim.UpstreamError](err); !ok || ue.Kind != kindProtocol {
		if !v.shaken.Load() {
			e.forget(v)
		}
		return false
	}
	e.changed(v)
	return v.shaken.Load()
}

// doubt drops the verdict on a server that answers as no modern one does, so
// that the next call finds out what it has become: without a JSON-RPC error, or
// with one of the codes that only legacy implementations use (X15).
func (e *eras) doubt(v *verdict, se *statusError) {
	if rpc := se.answer(); rpc != nil {
		code := mcp.CodeFrom(v.version, rpc.Code)
		if code > -32000 || code <= mcp.CodeReservedLast {
			return
		}
	}
	switch se.status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType:
		e.forget(v)
	}
}
