package upstream

import (
	"context"
	"errors"
	"time"

	"taskgate/gateway/remember"
	"taskgate/gateway/upstream/forward"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// findEra returns the verdict on the server. If it is unknown, findEra sends server/discover for this
// session. All callers to whom the server would say the same wait for one answer.
func (h *ServerClient) findEra(ctx context.Context, s shim.Session) (*verdict, error) {
	if v := h.memory.knownVerdict(); v.era != mcp.NoEra {
		return v, nil
	}
	return work.Once(ctx, h.work, &h.probing, clientsLike(ctx, s).spellKey(), func(ctx context.Context) (*verdict, error) {
		if v := h.memory.knownVerdict(); v.era != mcp.NoEra {
			return v, nil
		}
		return h.recogniseEra(ctx, s)
	})
}

// recogniseEra sends server/discover, and remembers the answer.
func (h *ServerClient) recogniseEra(ctx context.Context, s shim.Session) (*verdict, error) {
	v, srv, err := h.probeEra(ctx, s)
	if err != nil || v.era == mcp.Legacy {
		h.memory.alone.Store(0)
	}
	if err != nil {
		return v, err
	}
	v = h.memory.learnVerdict(v)
	if srv.Raw != nil {
		s.Legacy = false // a client that begins in the legacy era may hear something else
		h.memory.noteServer(ctx, s, srv)
	}
	return v, nil
}

// settleEra finds out the era for this session: that of the client, if the server takes it. If that is
// unknown, one session tries, and the others wait for it. No tool runs in all this.
func (h *ServerClient) settleEra(ctx context.Context, s shim.Session) (*verdict, mcp.Era, error) {
	v := h.memory.knownVerdict()
	if h.memory.isUntried(v, s) {
		_, err := work.Once(ctx, h.work, &h.probing, "handshake"+clientsLike(ctx, s).spellKey(), func(ctx context.Context) (struct{}, error) {
			if v := h.memory.knownVerdict(); h.memory.isUntried(v, s) {
				return struct{}{}, h.tryHandshake(ctx, v, s)
			}
			return struct{}{}, nil
		})
		if err != nil {
			return v, mcp.NoEra, err
		}
		v = h.memory.knownVerdict()
	}
	if era := h.memory.eraFor(v, s); era != mcp.NoEra {
		return v, era, nil
	}
	v, err := h.findEra(ctx, s)
	if err != nil {
		return nil, mcp.NoEra, err
	}
	return v, h.memory.eraFor(v, s), nil
}

// tryHandshake opens the session of a legacy client. If the server refuses it but speaks the modern era, that
// is a success.
func (h *ServerClient) tryHandshake(ctx context.Context, v *verdict, s shim.Session) error {
	ses := h.sessions.acquireSession(s)
	defer ses.releaseSession()
	l, err := ses.connectGeneration(ctx)
	if err != nil {
		if !h.memory.doubtHandshake(v, err) {
			return err
		}
		if now, asked := h.findEra(ctx, s); asked != nil || now.era != mcp.Modern {
			return handshakeError(err)
		}
		h.memory.setAlone() // also if findEra has just reset it
		return nil
	}
	v.shaken.Store(true)
	if l.server.Raw != nil { // another replica may have opened the session
		h.memory.noteServer(ctx, s, l.server)
	}
	return nil
}

// describeServer asks the server what it is, for clients like that of s.
func (h *ServerClient) describeServer(ctx context.Context, s shim.Session) (Description, time.Duration, error) {
	own := clientsLike(ctx, s)
	modern := own // a modern server says the same to clients of both eras
	modern.legacy = false
	believed := !forward.Of(ctx).Doubted // what was heard before
	var last error
	for range 2 { // a second time if the server turns out to be of the other era
		v, era, err := h.settleEra(ctx, s)
		if err == nil && era == mcp.Modern && !v.mute && !(believed && h.memory.seen.Find(modern).Fresh()) {
			if v, err = h.recogniseEra(ctx, s); err == nil {
				era = h.memory.eraFor(v, s)
			}
		}
		if err != nil {
			return Description{}, 0, err
		}
		if era == mcp.Modern {
			if now := h.memory.seen.Find(modern); now.Fresh() {
				return now.Value, time.Until(now.Until), nil
			}
			h.memory.forgetVerdict(v)
			return Description{}, 0, protocolError("the server does not describe itself", nil)
		}
		if now := h.memory.seen.Find(own); believed && now.Fresh() && now.Value.Era == mcp.Legacy {
			return now.Value, time.Until(now.Until), nil // the handshake of settleEra has brought it
		}
		srv, err := h.sessions.describeServer(ctx, s)
		if err == nil {
			v.shaken.Store(true)
			return srv, remember.Freshness(srv.Raw), nil
		}
		if !h.memory.doubtHandshake(v, err) {
			return srv, 0, err
		}
		last = handshakeError(err)
	}
	return Description{}, 0, last
}

// probeEra finds out the era (protocol.md 2.10): it sends server/discover in each known modern version until
// one is agreed on. It also returns the server's description; Raw is nil if that is missing.
func (h *ServerClient) probeEra(ctx context.Context, s shim.Session) (*verdict, Description, error) {
	if h.wire.cfg.Era == EraLegacy {
		return legacyVerdict(), Description{}, nil
	}
	v := &verdict{era: mcp.Modern, version: mcp.Version20260728}
	for range len(mcp.NamesOf(mcp.Modern)) + 1 { // one version may be asked for twice
		m, err := h.askDiscover(ctx, v.version, s)
		next, err := judgeVerdict(v, m, err)
		switch {
		case h.isUnknowing(err):
			return legacyVerdict(), Description{}, nil
		case err != nil:
			return nil, Description{}, forward.PassOn(ctx, mcp.MethodDiscover, err)
		case next.era == mcp.Legacy && h.wire.cfg.Era == EraModern: // the operator has excluded legacy
			return nil, Description{}, protocolError("the server does not speak a modern version of MCP, as configured", nil)
		case next.era == mcp.Legacy:
			return next, Description{}, nil
		case next.again && !v.again:
		case next.version == v.version && next.mute:
			return next, Description{}, nil
		case next.version == v.version:
			return next, serverOf(mcp.Modern, next.version, m.Result, "_meta", mcp.MetaServerInfo), nil
		}
		v = next
	}
	return nil, Description{}, protocolError("the server and the gateway have no protocol version in common", nil)
}

// askDiscover sends server/discover in a modern version and in the name of a client. A refusal counts against
// the client's token only if the client gets to see it.
func (h *ServerClient) askDiscover(ctx context.Context, version string, s shim.Session) (jsonrpc.Message, error) {
	ctx, cancel := h.wire.slowContext(forward.Unheard(ctx))
	defer cancel()
	x := h.wire.modernExchange(shim.Request{Method: mcp.MethodDiscover, Session: s}, nil, version)
	x.uncancelled = true
	if h.mayBeMute() {
		x.mute = h.wire.cfg.Silence
	}
	return x.runRequest(ctx)
}

// mayBeMute reports whether the server may leave an unknown server/discover unanswered, as programs do
// (protocol.md 2.10).
func (h *ServerClient) mayBeMute() bool {
	return h.wire.cfg.Transport != nil && h.wire.cfg.Era != EraModern && h.memory.knownVerdict().era == mcp.NoEra
}

// isUnknowing reports whether the server does not know server/discover: it has ended at it, or was silent.
func (h *ServerClient) isUnknowing(err error) bool {
	ue, ok := errors.AsType[*shim.UpstreamError](err)
	return ok && ue.Kind == shim.KindClosed && h.mayBeMute()
}

// AsksForRoots reports whether the server asks clients like this one for their roots outside of any call. If nobody knows,
// it introduces the client to the server, and waits for that question, which servers ask at once.
func (h *ServerClient) AsksForRoots(ctx context.Context, s shim.Session, d Description) bool {
	if d.Era != mcp.Legacy || len(d.Info) == 0 || !hasRoots(s) {
		return false
	}
	key, r := rootsKey(d), &h.memory.roots
	if asks, fresh := r.find(key); asks || fresh {
		return asks
	}
	asks, err := work.Once(ctx, h.work, &h.probing, key, func(ctx context.Context) (bool, error) { return h.findRoots(ctx, s, key) })
	if err != nil {
		h.wire.log.Debug("it is unknown whether the server asks for roots", "err", err)
	}
	return asks
}

// findRoots looks for the verdict in the store, and finds it out if nobody has. A store that is away leaves it to this
// replica.
func (h *ServerClient) findRoots(ctx context.Context, s shim.Session, key string) (asks bool, err error) {
	r := &h.memory.roots
	var state []byte
	rev := int64(0)
	if h.wire.cfg.Sessions != nil {
		state, rev, err = h.wire.cfg.Sessions.Load(ctx, key)
	}
	if err == nil && rev != 0 {
		asks = string(state) == rootsAsked
		r.note(key, asks)
		return asks, nil
	}
	r.mu.Lock()
	known := r.of == key && r.known
	asks = r.asks && known
	r.mu.Unlock()
	if !known {
		if asks, err = h.awaitRootsQuestion(ctx, s, key); err != nil {
			return asks, err
		}
	}
	r.note(key, asks)
	h.sessions.storeRoots(ctx, key, asks)
	return asks, nil
}

// awaitRootsQuestion introduces a client to the server, and waits for the question. A session over HTTP is one of its own,
// since in an older one the server may have asked already; a program is that of the client's calls.
func (h *ServerClient) awaitRootsQuestion(ctx context.Context, s shim.Session, key string) (asks bool, err error) {
	var ses *session
	if h.wire.cfg.Transport != nil {
		ses = h.sessions.acquireSession(s)
	} else {
		s.Key, s.Shared = "", false
		ses = newSession(h.sessions, keyOf(s), s)
		ses.ends = true
		ses.pinSession()
	}
	defer ses.releaseSession()
	heard := h.memory.roots.expect(key)
	l, err := ses.connectGeneration(ctx)
	if err != nil {
		return false, err
	}
	if opened := ses.get.needStream(ctx); opened != nil {
		defer ses.get.doneStream()
		ses.get.awaitStream(ctx, opened)
	}
	if ses.get.isMissing() {
		return false, nil // so the server cannot ask
	}
	if err := l.introduceClient(ctx, ses); err != nil {
		return false, err
	}
	err = work.PauseFor(ctx, heard, rootsSoon-time.Since(time.Unix(0, ses.readyAt.Load()))) // the question wakes it
	return work.IsClosed(heard), err
}
