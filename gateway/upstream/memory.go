package upstream

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/remember"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// memory is what is known of one server: in which era it is spoken to, what it says of itself, and
// its tools. It asks nobody: the client fills it in, and whoever hears something that contradicts
// it says so. It is safe for concurrent use.
type memory struct {
	era   Era // as configured
	log   *slog.Logger
	seen  *remember.Answers[sessionKey, Server]          // by the capabilities that were declared, and the client's era
	lists *remember.Answers[sessionKey, map[string]Tool] // one per session, and of a modern server one for each set of capabilities
	// alone is until when the server is taken to speak the modern era alone, since it has
	// refused a handshake: nanoseconds since 1970.
	alone atomic.Int64

	mu  sync.Mutex // guards cur
	cur *verdict   // of NoEra before there is one
}

// aloneFor is how long a server that has refused a handshake is not asked for another one.
const aloneFor = remember.Most

// eraFor is the era in which the server is spoken to for a session: in that of the client
// as long as nothing is known against it. Of a server that speaks both eras all clients have
// their own, unless the operator has decided. It is NoEra where the server has to be asked.
func (m *memory) eraFor(v *verdict, s shim.Session) mcp.Era {
	switch {
	case m.era == EraLegacy:
		return mcp.Legacy
	case m.era == EraAuto && s.Legacy && time.Now().UnixNano() >= m.alone.Load():
		return mcp.Legacy
	}
	return v.era
}

// isUntried reports whether this session needs to know whether the server takes a handshake, and
// nobody knows yet. (That a server lists no legacy version does not tell: it may, and need not.)
func (m *memory) isUntried(v *verdict, s shim.Session) bool {
	return v.era != mcp.Legacy && m.era != EraLegacy && m.eraFor(v, s) == mcp.Legacy && !v.shaken.Load()
}

// knownVerdict is what is known of the server, which may be nothing.
func (m *memory) knownVerdict() *verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cur
}

// learnVerdict takes a new verdict, and returns the one that holds from now on.
func (m *memory) learnVerdict(v *verdict) *verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.cur; c.era != v.era || c.version != v.version || c.mute != v.mute {
		log := m.log.With("era", v.era.String())
		if v.version != "" { // of a legacy server, each handshake tells it
			log = log.With("version", v.version)
		}
		log.Info("upstream recognised")
		v.shaken.Store(c.era == mcp.NoEra && c.shaken.Load())
		m.cur = v
	}
	return m.cur
}

// forgetVerdict drops a verdict that an answer of the server contradicts.
func (m *memory) forgetVerdict(v *verdict) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cur == v {
		m.cur = &verdict{}
	}
}

// forgetServer has everything asked for again of a server that has become another.
func (m *memory) forgetServer(v *verdict) {
	m.forgetVerdict(v)
	m.seen.Doubt(0, remember.Every)
	m.lists.Doubt(0, remember.Every)
}

// noteServer remembers what the server says of itself to clients like this one. A server that says
// something else than before was replaced: what it has said to others is in doubt then, and
// so are its tools, and that it knows one era only.
func (m *memory) noteServer(ctx context.Context, s shim.Session, srv Server) {
	k := clientsLike(ctx, s)
	before := m.seen.Find(k)
	m.seen.Put(k, srv, remember.Freshness(srv.Raw))
	if srv.Era == mcp.Legacy {
		m.alone.Store(0) // it takes handshakes
	}
	if before == nil || before.Value.isLike(srv) {
		return
	}
	m.seen.Doubt(remember.Least, func(other sessionKey) bool { return other != k })
	m.lists.Doubt(remember.Least, remember.Every)
	m.alone.Store(0)
	if v := m.knownVerdict(); v.era == mcp.Legacy {
		m.forgetVerdict(v)
	}
}

// setAlone takes note that the server has refused a handshake.
func (m *memory) setAlone() { m.alone.Store(time.Now().Add(aloneFor).UnixNano()) }

// doubtHandshake decides, after a handshake failed, whether the server should be probed
// again at once: it must be if it answers as a modern one, or if handshakes used
// to succeed. In any case the verdict is not kept if the server gave an answer
// that is none of MCP's, or if no handshake has ever confirmed it: a modern server that is
// in trouble may look like a legacy one.
//
// A server that refuses its first handshake, and is not known to be a legacy one, may speak the
// modern era: it is asked that, and is spoken to as what it is.
func (m *memory) doubtHandshake(v *verdict, err error) bool {
	if v.era != mcp.Legacy && m.era != EraLegacy && !v.shaken.Load() {
		ue, ok := errors.AsType[*shim.UpstreamError](publicError(err))
		refused := contradictsLegacy(err) || ok && ue.Kind == shim.KindProtocol
		if refused {
			m.setAlone()
		}
		return refused
	}
	rpc, _ := errors.AsType[*jsonrpc.Error](err)
	if contradictsLegacy(err) || rpc != nil && rpc.Code == mcp.CodeMethodNotFound {
		m.forgetServer(v) // it may have been silent, and not legacy
		return true
	}
	if ue, ok := errors.AsType[*shim.UpstreamError](err); !ok || ue.Kind != shim.KindProtocol {
		if !v.shaken.Load() {
			m.forgetVerdict(v)
		}
		return false
	}
	m.forgetServer(v)
	return v.shaken.Load()
}

// doubtVerdict drops the verdict on a server that answers as no modern one does, so
// that the next call finds out what it has become: without a JSON-RPC error, or
// with one of the codes that only legacy implementations use (X15).
func (m *memory) doubtVerdict(v *verdict, se *transport.StatusError) {
	if rpc := se.Answer(); rpc != nil {
		code := mcp.CodeFrom(v.version, rpc.Code)
		if code > -32000 || code <= mcp.CodeReservedLast {
			return
		}
	}
	switch se.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType:
		m.forgetVerdict(v)
	}
}

// forget has the list that a session sees be read again.
func (m *memory) forgetTools(s shim.Session) {
	caps := fingerprintOf(s.Capabilities)
	m.lists.Doubt(0, func(k sessionKey) bool { return k.caps == caps && (k.key == "" || k.key == s.Key) })
}

// listChanged takes a notification: a list of the server has changed, and perhaps what it says of
// itself. whose picks the lists of tools that it is about.
func (m *memory) listChanged(method string, whose func(sessionKey) bool) {
	switch method {
	case mcp.NotifyToolsListChanged:
		m.lists.Doubt(0, whose)
	case mcp.NotifyPromptsListChanged, mcp.NotifyResourcesListChanged:
	default:
		return
	}
	m.seen.Doubt(remember.Least, remember.Every)
}

// takeNotification takes a notification of a modern server, which means all of its clients.
func (m *memory) takeNotification(n shim.Notification) { m.listChanged(n.Method, remember.Every) }

// knownServer is what the server says of itself in sessions like this one, as far as that is
// known.
func (m *memory) knownServer(ctx context.Context, s shim.Session) Server {
	if srv := m.seen.Find(clientsLike(ctx, s)); srv != nil && srv.Value.Era == mcp.Legacy {
		return srv.Value
	}
	return Server{}
}

// sessionKey names an upstream session: a legacy server fixes the abilities of
// its client per session (protocol.md H4).
type sessionKey struct {
	key, caps string
	mark      string // of the headers that go to the server (shim.Session)
	token     string // of what is remembered only: by which token it was heard
	legacy    bool   // the client began in the legacy era
}

func (k sessionKey) isSame(other sessionKey) bool { return k == other }

// spellKey tells apart whom a server could answer otherwise, whatever they declare.
func (k sessionKey) spellKey() string { return k.mark + " " + k.token }

// spellVariant tells sessions under one key apart.
func (k sessionKey) spellVariant() string {
	if k.mark == "" {
		return k.caps
	}
	return k.caps + " " + k.mark
}

func keyOf(s shim.Session) sessionKey {
	return sessionKey{key: s.Key, caps: fingerprintOf(s.Capabilities), mark: s.Mark, legacy: s.Legacy}
}

// clientsLike is what is remembered for all clients that hear the same of a server: those of
// an era that declare the same. What a server says may depend on who asks: what goes to it of the
// client's request tells them apart, too.
func clientsLike(ctx context.Context, s shim.Session) sessionKey {
	k := keyOf(s)
	k.key, k.token = "", forward.TokenMark(ctx)
	return k
}
