package upstream

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"taskgate/gateway/remember"
	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/listed"
	"taskgate/gateway/upstream/reading"
	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// memory is what is known of one server: in which era it is spoken to, what it says of itself, and
// its tools. It is passive: the client fills it in, and reports answers that contradict it. It is
// safe for concurrent use.
type memory struct {
	era   EraChoice // as configured
	log   *slog.Logger
	seen  *remember.Answers[sessionKey, Description]     // by declared capabilities and the client's era
	lists *remember.Answers[sessionKey, map[string]Tool] // one per session; of a modern server one per set of capabilities
	marks *lru.Cache[sessionKey, *listed.Marks]          // of a modern server, by the same sets
	// alone is until when the server counts as speaking the modern era alone, after it has refused
	// a handshake: nanoseconds since 1970.
	alone atomic.Int64

	roots rootsVerdict

	cur atomic.Pointer[verdict] // of NoEra until the server is recognised

	endless sync.Once // the log says that the list of tools does not end
}

// aloneFor is how long a server that has refused a handshake is spared another one.
const aloneFor = remember.Most

// eraFor is the era in which the server is spoken to for a session: the client's, until something
// is known against it. With a server of both eras each client has its own era, unless the operator
// has decided. It is NoEra if the server has to be asked.
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
// that is unknown. (The server's list of versions leaves that open: legacy versions may be
// missing.)
func (m *memory) isUntried(v *verdict, s shim.Session) bool {
	return v.era != mcp.Legacy && m.era != EraLegacy && m.eraFor(v, s) == mcp.Legacy && !v.shaken.Load()
}

// knownVerdict is the present verdict; its era is NoEra if the server is unknown.
func (m *memory) knownVerdict() *verdict { return m.cur.Load() }

// learnVerdict takes a new verdict, and returns the one that holds from now on.
func (m *memory) learnVerdict(v *verdict) *verdict {
	for {
		c := m.cur.Load()
		if c.era == v.era && c.version == v.version && c.mute == v.mute {
			return c
		}
		v.shaken.Store(c.era == mcp.NoEra && c.shaken.Load())
		if m.cur.CompareAndSwap(c, v) {
			break
		}
	}
	log := m.log.With("era", v.era.String())
	if v.version != "" { // each handshake tells that of a legacy server
		log = log.With("version", v.version)
	}
	log.Info("upstream recognised")
	return v
}

// forgetVerdict drops a verdict that an answer of the server contradicts.
func (m *memory) forgetVerdict(v *verdict) { m.cur.CompareAndSwap(v, &verdict{}) }

// forgetServer asks for everything again, since the server has become another.
func (m *memory) forgetServer(v *verdict) {
	m.forgetVerdict(v)
	m.seen.Doubt(0, remember.Every)
	m.lists.Doubt(0, remember.Every)
}

// noteServer remembers what the server says of itself to clients like this one. A server that says
// something new was replaced: its answers to others are in doubt, its tools, and that it knows one
// era only.
func (m *memory) noteServer(ctx context.Context, s shim.Session, srv Description) {
	k := clientsLike(ctx, s)
	before := m.seen.Find(k)
	m.seen.Put(k, srv, time.Now(), remember.Freshness(srv.Raw))
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

// setAlone notes that the server has refused a handshake.
func (m *memory) setAlone() { m.alone.Store(time.Now().Add(aloneFor).UnixNano()) }

// doubtHandshake decides, after a handshake failed, whether to probe the server again at once: it
// does so if the server answers as a modern one, or if handshakes used to succeed. It also drops
// the verdict if the server's answer is foreign to MCP, or if a handshake has yet to confirm the
// verdict: a modern server in trouble may look like a legacy one.
//
// A server of an unknown era that refuses its first handshake may speak the modern one. It is
// asked that, and is spoken to as what it is.
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
		m.forgetServer(v) // the server may have been silent, and not legacy
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

// doubtVerdict drops the verdict on a server whose answer is foreign to modern servers, so that
// the next call finds out what it has become: the answer lacks a JSON-RPC error, or has one of the
// codes that only legacy implementations use (X15).
func (m *memory) doubtVerdict(v *verdict, se *transport.StatusError) {
	if rpc := se.Answer(); rpc != nil {
		if rpc.Code > -32000 || rpc.Code <= mcp.CodeReservedLast {
			return
		}
	}
	switch se.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType:
		m.forgetVerdict(v)
	}
}

// marksOf are the marks of the lists that a modern server shows under a key.
func (m *memory) marksOf(k sessionKey) *listed.Marks {
	if have, ok, _ := m.marks.PeekOrAdd(k, &listed.Marks{}); ok {
		return have
	}
	return m.marksOf(k)
}

// forgetTools has the list that a session sees read again.
func (m *memory) forgetTools(s shim.Session) {
	caps := reading.FingerprintOf(s.Capabilities)
	m.lists.Doubt(0, func(k sessionKey) bool { return k.caps == caps && (k.key == "" || k.key == s.Key) })
}

// listChanged takes a notification: a list of the server has changed, and perhaps what it says of
// itself. whose picks the lists of tools concerned.
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

// takeNotification takes a notification of a modern server, which is meant for all of its clients.
func (m *memory) takeNotification(n shim.Notification) { m.listChanged(n.Method, remember.Every) }

// knownServer is what is known of the server's description in sessions like this one; zero if it
// is unknown.
func (m *memory) knownServer(ctx context.Context, s shim.Session) Description {
	if srv := m.seen.Find(clientsLike(ctx, s)); srv != nil && srv.Value.Era == mcp.Legacy {
		return srv.Value
	}
	return Description{}
}

// sessionKey names an upstream session. The capabilities are part of it, since a legacy server
// fixes those of its client per session (protocol.md H4).
type sessionKey struct {
	key, caps string
	mark      string // of the headers that go to the server (shim.Session)
	token     string // by which token a remembered answer was heard
	legacy    bool   // the client began in the legacy era
}

func (k sessionKey) isSame(other sessionKey) bool { return k == other }

// spellKey tells apart clients that a server may answer differently, even if they declare the
// same.
func (k sessionKey) spellKey() string { return k.mark + " " + k.token }

// spellVariant tells sessions under one key apart.
func (k sessionKey) spellVariant() string {
	if k.mark == "" {
		return k.caps
	}
	return k.caps + " " + k.mark
}

func keyOf(s shim.Session) sessionKey {
	return sessionKey{key: s.Key, caps: reading.FingerprintOf(s.Capabilities), mark: s.Mark, legacy: s.Legacy}
}

// clientsLike is the key for all clients that hear the same of a server: those of one era that
// declare the same and send the same headers and token.
func clientsLike(ctx context.Context, s shim.Session) sessionKey {
	k := keyOf(s)
	k.key, k.token = "", forward.TokenMark(ctx)
	return k
}
