package upstream

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

// sessionTable holds the legacy sessions with one server, and what all of them need. The client owns it; mu
// guards m and closed.
type sessionTable struct {
	wire       *wire
	work       *work.Background
	memory     *memory
	support    getSupport
	askSession atomic.Pointer[SessionAsker]
	others     others
	// waiting is how many bytes of session questions wait until their clients can be asked.
	waiting atomic.Int64

	mu sync.Mutex
	m  map[string]map[string]*session // by key, then by capabilities
	// closed says that a session which is still asked for ends with its call.
	closed bool
}

// maxVariants bounds the sessions under one key, which may stand for many clients: one for each set of
// declared capabilities. A call with a further set has a session of its own, so that the number of lasting
// sessions stays bounded.
const maxVariants = 32

// acquireSession returns the session of this client and pins it: it lasts until its last release.
// session.openGeneration opens it.
func (t *sessionTable) acquireSession(s shim.Session) *session {
	k := keyOf(s)
	t.mu.Lock()
	defer t.mu.Unlock()
	ses := t.m[k.key][k.spellVariant()]
	if ses == nil {
		ses = newSession(t, k, s)
		// An anonymous call has a session of its own (H5), unless the configuration says otherwise, or the
		// server lacks session ids: see session.shakeHands.
		ses.ends = s.Key == "" && !t.wire.cfg.Shared || !t.putSession(ses)
	}
	ses.pinSession()
	return ses
}

// putSession adds a session if its place is free, and reports whether the session is kept. t.mu is held.
func (t *sessionTable) putSession(s *session) bool {
	variants := t.m[s.key.key]
	if t.closed || variants[s.key.spellVariant()] != nil || len(variants) >= maxVariants {
		return false
	}
	if variants == nil {
		variants = make(map[string]*session, 1)
		t.m[s.key.key] = variants
	}
	variants[s.key.spellVariant()] = s
	return true
}

// findSession returns a session that has been opened, here or on another replica, and pins it; nil if it is
// missing.
func (t *sessionTable) findSession(ctx context.Context, s shim.Session) *session {
	k := keyOf(s)
	t.mu.Lock()
	ses := t.m[k.key][k.spellVariant()]
	if ses != nil && ses.isOpen() {
		ses.pinSession()
		t.mu.Unlock()
		return ses
	}
	t.mu.Unlock()
	if t.isOpened(ctx, s) {
		return t.acquireSession(s)
	}
	return nil
}

// hasSession reports whether a session has been opened, here or on another replica.
func (t *sessionTable) hasSession(ctx context.Context, s shim.Session) bool {
	ses := t.findSession(ctx, s)
	if ses == nil {
		return false
	}
	ses.releaseSession()
	return true
}

// generationOf is the generation of a session that a checkpoint names.
func (c *checkpoint) generationOf() *generation {
	return &generation{target: target{era: mcp.Legacy, version: c.Version, session: c.Session, cookie: c.Cookie, gen: c.Generation}}
}

// adoptSession brings in a session that another replica opened, to resume a call in it. Later calls under the
// same key use it, unless there is one already. It is kept at the server: this replica or another may resume
// other calls of the lost replica in it, and the server ends it in its own time. A session that replicas
// share in the store idles out. The generation is that of the session, which may have had it already.
func (t *sessionTable) adoptSession(ctx context.Context, s shim.Session, l *generation) (*session, *generation) {
	k := keyOf(s)
	ses := newSession(t, k, s)
	ses.info.Store(nil)
	t.wire.numbers.takeBlock(ctx, t.wire.cfg.Sessions)
	l.server = t.memory.knownServer(ctx, s) // a checkpoint leaves it out
	l.ready.Store(true)                     // a call was sent in it
	ses.cur = l
	ses.noteCarried(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if have := t.m[k.key][k.spellVariant()]; have != nil && l.session != "" {
		if cur := have.currentGeneration(); cur != nil && cur.session == l.session {
			have.pinSession()
			return have, cur
		}
	}
	ses.ends = s.Key == "" || !t.putSession(ses)
	ses.kept = ses.ends || !ses.shared.Load()
	ses.pinSession()
	return ses, l
}

// shareSession keeps a session under its key, for all calls, and reports false if there is one already.
func (t *sessionTable) shareSession(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.putSession(s)
}

func (t *sessionTable) removeSession(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removeLocked(s)
}

// removeUnused is removeSession for an unpinned session; it reports false for a pinned one. A session in the
// table is pinned with t.mu held.
func (t *sessionTable) removeUnused(s *session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.mu.Lock()
	unused := s.refs == 0
	s.mu.Unlock()
	if unused {
		t.removeLocked(s)
	}
	return unused
}

// removeLocked is removeSession with t.mu held.
func (t *sessionTable) removeLocked(s *session) {
	if variants := t.m[s.key.key]; variants[s.key.spellVariant()] == s {
		delete(variants, s.key.spellVariant())
		if len(variants) == 0 {
			delete(t.m, s.key.key)
		}
	}
}

// endKey ends the sessions of a key, whatever capabilities they were opened with. Those that replicas share end with
// their last call or task at any replica.
func (t *sessionTable) endKey(ctx context.Context, key string) {
	t.mu.Lock()
	all := slices.Collect(maps.Values(t.m[key]))
	t.mu.Unlock()
	if len(all) == 0 && t.wire.cfg.Sessions != nil {
		t.endUnknown(ctx, key)
	}
	for _, s := range all {
		if !s.shared.Load() {
			t.removeSession(s)
			s.finishSession()
			continue
		}
		t.endAfterUse(s)
	}
}

// Once its client has ended its own, a session that replicas share is kept without use for endedSoon: its own calls and
// tasks here use it, and those at other replicas are noted in the store by then. It is kept for endedIdle while there are
// tasks of which nobody notes what they use.
const (
	endedSoon = useLasts + 500*time.Millisecond
	endedIdle = 3 * time.Minute
)

// endAfterUse ends a session whose client has ended it, once it is unused.
func (t *sessionTable) endAfterUse(s *session) {
	s.mu.Lock()
	known := s.over
	s.over = true
	s.mu.Unlock()
	if !known {
		t.limitIdle(s, endedSoon)
	}
}

// limitIdle sets how long a session may be idle from now on.
func (t *sessionTable) limitIdle(s *session, most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = most
	if s.refs == 0 && s.timer != nil {
		s.timer.Reset(most)
	}
}

// expireSession ends a session that has been idle for long, unless a call has just begun to use it.
func (t *sessionTable) expireSession(s *session) {
	t.work.Go(context.Background(), func(ctx context.Context) {
		s.mu.Lock()
		idle, kept, over := s.idle, s.kept, s.over
		s.mu.Unlock()
		unused := idle / 2 // at any replica
		if idle == endedSoon {
			if kept || t.haveUnnoted(ctx) {
				t.limitIdle(s, endedIdle)
				return
			}
			unused = 0
		}
		if !t.removeUnused(s) {
			return
		}
		s.finishSession()
		if s.shared.Load() {
			t.endShared(s.carryLatest(ctx), s.key.key, over, unused)
		}
	})
}

// haveUnnoted reports whether there may be tasks that use sessions, and nobody notes it.
func (t *sessionTable) haveUnnoted(ctx context.Context) bool {
	if t.wire.cfg.TasksUnnoted == nil {
		return true
	}
	ctx, cancel := t.wire.slowContext(ctx)
	defer cancel()
	has, err := t.wire.cfg.TasksUnnoted(ctx)
	return has || err != nil
}

func (t *sessionTable) closeAll() {
	t.mu.Lock()
	t.closed = true
	all := t.m
	t.m = nil
	t.mu.Unlock()
	for _, variants := range all {
		for _, s := range variants {
			s.finishSession()
		}
	}
}

// dropDoubted drops the generations that clients share, and in which the server answers no more.
func (t *sessionTable) dropDoubted(ctx context.Context) {
	t.mu.Lock()
	var all []*session
	for _, variants := range t.m {
		for _, s := range variants {
			s.pinSession()
			all = append(all, s)
		}
	}
	t.mu.Unlock()
	for _, s := range all {
		if !s.from.Shared {
			s.doubt.dropDoubted(ctx)
		}
		s.releaseSession()
	}
}

// describeServer asks what the server is, for clients with the capabilities of s. A server says it once in a
// session, when that is opened. So if the session of s is open, the server is asked in another one, which is
// ended again. Over a Transport, which has one program for the whole life of a session, the first answer
// serves.
func (t *sessionTable) describeServer(ctx context.Context, s shim.Session) (Description, error) {
	ses := t.acquireSession(s)
	defer ses.releaseSession()
	if l := ses.currentGeneration(); l != nil && t.wire.cfg.Transport != nil {
		return l.server, nil // another session could start another process
	}
	if !ses.isOpen() {
		l, err := ses.connectGeneration(ctx)
		if err != nil {
			return Description{}, err
		}
		if l.server.Raw != nil {
			return l.server, nil
		}
	}
	s.Key = ""
	l, err := newSession(t, keyOf(s), s).initializeServer(ctx)
	if err != nil {
		return Description{}, err
	}
	t.discardGeneration(ctx, l)
	return l.server, nil
}

// discardGeneration deletes an unused generation.
func (t *sessionTable) discardGeneration(ctx context.Context, l *generation) {
	if l.session == "" {
		return
	}
	t.wire.sessionEnded(l, "")
	t.work.Go(ctx, func(ctx context.Context) {
		// The deletion outlives the client's life, which Close ends.
		ctx, cancel := outliveCaller(ctx, deleteTimeout)
		defer cancel()
		t.wire.deleteGeneration(ctx, l)
	})
}
