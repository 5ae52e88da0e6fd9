package upstream

import (
	"sync"

	"taskgate/shim"
)

// sessionKey names an upstream session: a legacy server fixes the abilities of
// its client per session (protocol.md H4).
type sessionKey struct{ key, caps string }

// pool holds the legacy sessions of one upstream. The zero pool is ready once h
// is set.
type pool struct {
	h  *HTTP
	mu sync.Mutex
	m  map[sessionKey]*session
	// closed: sessions that are still asked for end with the call.
	closed bool
}

// acquire returns the session for these words and pins it: it is not ended
// before its last release. It is opened by session.open.
func (p *pool) acquire(s shim.Session) *session {
	k := sessionKey{s.Key, fingerprint(s.Capabilities)}
	p.mu.Lock()
	defer p.mu.Unlock()
	ses := p.m[k]
	if ses == nil {
		ses = newSession(p.h, k, s)
		// An anonymous call has a session of its own (H5), unless configured
		// otherwise, or known to make no difference: see session.settle.
		if !p.closed && (s.Key != "" || p.h.cfg.Shared) {
			p.put(ses)
		} else {
			ses.own = true
		}
	}
	ses.pin()
	return ses
}

func (p *pool) put(s *session) {
	if p.m == nil {
		p.m = make(map[sessionKey]*session)
	}
	p.m[s.key] = s
}

// find returns a session that has been opened, pinned; nil if there is none.
func (p *pool) find(s shim.Session) *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	ses := p.m[sessionKey{s.Key, fingerprint(s.Capabilities)}]
	if ses == nil || !ses.isOpen() {
		return nil
	}
	ses.pin()
	return ses
}

// adopt brings in a session that another replica opened, to resume a call in
// it. Later calls under the same key go on in it, where there is none yet. It is
// not deleted from here: other calls of the lost replica may be resumed in it, by
// this replica and by others, and the server ends it in its own time. One that
// replicas share in the store ends as they agree there.
func (p *pool) adopt(s shim.Session, l *link) *session {
	k := sessionKey{s.Key, fingerprint(s.Capabilities)}
	ses := newSession(p.h, k, s)
	l.server, _ = p.h.seen.get(k.caps) // a checkpoint does not say it
	ses.cur, ses.gen = l, l.gen
	p.mu.Lock()
	defer p.mu.Unlock()
	if have := p.m[k]; have != nil && have.holds(l.id) {
		have.pin()
		return have
	}
	if !p.closed && p.m[k] == nil && s.Key != "" {
		p.put(ses)
		ses.kept = !ses.shared
	} else {
		ses.own, ses.kept = true, true
	}
	ses.pin()
	return ses
}

// share keeps a session under its key, for all calls, if it is the first one.
func (p *pool) share(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.m[s.key] != nil {
		return false
	}
	p.put(s)
	return true
}

// remove forgets a session.
func (p *pool) remove(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m[s.key] == s {
		delete(p.m, s.key)
	}
}

// end ends the sessions of a key, whatever abilities they were opened with, and
// reports whether there were any.
func (p *pool) end(key string) bool {
	all := p.take(func(k sessionKey) bool { return k.key == key })
	for _, s := range all {
		s.finish(true)
	}
	return len(all) > 0
}

// close ends all sessions.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for _, s := range p.take(func(sessionKey) bool { return true }) {
		s.finish(false)
	}
}

func (p *pool) take(which func(sessionKey) bool) []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*session
	for k, s := range p.m {
		if which(k) {
			delete(p.m, k)
			out = append(out, s)
		}
	}
	return out
}

// described remembers what a legacy server says of itself, per capabilities.
type described struct {
	mu sync.Mutex
	m  map[string]Server
}

// maxDescribed bounds the memory of it: the capabilities are the clients'.
const maxDescribed = 256

func (d *described) get(caps string) (Server, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.m[caps]
	return s, ok
}

func (d *described) put(caps string, s Server) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.m == nil || len(d.m) >= maxDescribed {
		d.m = make(map[string]Server)
	}
	d.m[caps] = s
}

func (d *described) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.m = nil
}
