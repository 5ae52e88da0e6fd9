package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// verdict is what a probe found out.
type verdict struct {
	era     mcp.Era
	version string // modern: the version to speak
	server  Server // modern: what discover said; Raw is nil if it said nothing
	// shaken says that a legacy handshake has succeeded under it: if one fails
	// later, the server has become another.
	shaken atomic.Bool
}

func legacyVerdict() *verdict { return &verdict{era: mcp.Legacy} }

// eras remembers the verdict on a server until something contradicts it. There
// is one per leg, and so one per process and endpoint.
type eras struct {
	h      *HTTP
	mu     sync.Mutex
	cur    *verdict
	flight *flight[*verdict]
}

// get returns the verdict, probing if there is none. All who need one wait for
// the same probe.
func (e *eras) get(ctx context.Context) (*verdict, error) {
	e.mu.Lock()
	if v := e.cur; v != nil {
		e.mu.Unlock()
		return v, nil
	}
	if e.flight == nil {
		e.flight = fly(e.h, ctx, e.probe)
	}
	f := e.flight
	e.mu.Unlock()
	return f.wait(ctx)
}

// forget drops a verdict that an answer of the server contradicts.
func (e *eras) forget(v *verdict) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cur == v {
		e.cur = nil
	}
}

// describe gives what a modern server said of itself.
func (e *eras) describe(v *verdict) (Server, error) {
	if v.server.Raw == nil {
		e.forget(v)
		return Server{}, protocolError("the server does not describe itself", nil)
	}
	return v.server, nil
}

func (e *eras) probe(ctx context.Context) (*verdict, error) {
	v, err := e.h.probe(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flight = nil
	if err == nil {
		e.cur = v
		e.h.log.Info("upstream recognised", "era", v.era.String(), "version", v.version)
	}
	return v, err
}

// probe finds out the era (protocol.md 2.10): discover first, in each modern
// version that is known until one is agreed on.
func (h *HTTP) probe(ctx context.Context) (*verdict, error) {
	if h.cfg.Era == EraLegacy {
		return legacyVerdict(), nil
	}
	v := &verdict{era: mcp.Modern, version: mcp.Version20260728}
	for range mcp.NamesOf(mcp.Modern) {
		m, err := h.discover(ctx, v.version)
		next, err := h.judge(v, m, err)
		if err != nil {
			return nil, err
		}
		if next.era != mcp.Modern || next.version == v.version {
			return h.settle(next)
		}
		v = next
	}
	return nil, protocolError("the server and the gateway have no protocol version in common", nil)
}

// settle applies the operator's word.
func (h *HTTP) settle(v *verdict) (*verdict, error) {
	if v.era == mcp.Legacy && h.cfg.Era == EraModern {
		return nil, protocolError("the server does not speak a modern version of MCP, as configured", nil)
	}
	return v, nil
}

// discover asks a server what it speaks, in a modern version.
func (h *HTTP) discover(ctx context.Context, version string) (jsonrpc.Message, error) {
	ctx, cancel := h.slow(ctx)
	defer cancel()
	x := h.modernExchange(shim.Request{Method: mcp.MethodDiscover}, discard{}, version)
	x.handshake = true
	return x.run(ctx)
}

// judge reads a verdict off the answer to a discover sent as v says. A modern
// verdict with another version than v's says to ask again in that one.
func (h *HTTP) judge(v *verdict, m jsonrpc.Message, err error) (*verdict, error) {
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
		return v, nil // modern, though it does not describe itself
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
	srv := Server{Era: mcp.Modern, Version: v.version, Raw: raw(result)}
	srv.Capabilities, _ = jsonrpc.Get(srv.Raw, "capabilities")
	srv.Info, _ = jsonrpc.Get(srv.Raw, "_meta", mcp.MetaServerInfo)
	srv.Instructions, _ = jsonrpc.GetString(srv.Raw, "instructions")
	return &verdict{era: mcp.Modern, version: v.version, server: srv}, nil
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

// doubts decides, after a handshake failed, whether the server should be probed
// again at once: it must be if it answers as a modern one, or if handshakes used
// to succeed. In any case the verdict is not kept if the server gave an answer
// that is none of MCP's.
func (h *HTTP) doubts(v *verdict, err error) bool {
	if contradicts(err) {
		h.changedEra(v)
		return true
	}
	if ue, ok := errors.AsType[*shim.UpstreamError](err); !ok || ue.Kind != kindProtocol {
		return false
	}
	h.changedEra(v)
	return v.shaken.Load()
}
