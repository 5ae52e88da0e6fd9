package upstream

import (
	"context"
	"time"
)

// This file decides how long the GET stream of a session is held.

// A server may end a session whose client is not heard on the stream, with all that the session has: Playwright's
// sends a ping every 3 s. So the stream is kept where the server has said something on it, and where a session of that
// server was lost after the stream was closed.
const (
	// keepUnused is how long a kept stream outlives the last request in its session.
	keepUnused = 10 * time.Minute
	// keepLook is how often the replica that keeps a stream asks the others whether they use the session.
	keepLook = time.Minute
)

// needStream is wantStream for a call. It returns nil if the server is known to lack such a stream.
func (st *getStream) needStream(ctx context.Context) (opened <-chan struct{}) {
	if st.isMissing() {
		return nil
	}
	_, opened = st.wantStream(ctx)
	return opened
}

// isMissing reports whether the server is known to lack such a stream.
func (st *getStream) isMissing() bool { return time.Now().UnixMilli() < st.s.t.support.until.Load() }

// doneStream undoes needStream.
func (st *getStream) doneStream() { st.unwantStream(linger) }

// unwantStream undoes wantStream. After the last user the stream is kept for a while in which another may come, and
// for its server.
func (st *getStream) unwantStream(after time.Duration) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.used = time.Now()
	if st.users--; st.users > 0 {
		return
	}
	if after <= 0 {
		st.keepOrClose()
		return
	}
	st.restFor(after)
}

// restFor has the unwanted stream looked at again after a while. st.mu is held.
func (st *getStream) restFor(after time.Duration) {
	if st.rest == nil {
		st.rest = time.AfterFunc(after, st.endRest)
	} else {
		st.rest.Reset(after)
	}
}

func (st *getStream) endRest() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.users == 0 {
		st.keepOrClose()
	}
}

// keepOrClose keeps an unwanted stream for its server, or closes it. st.mu is held.
func (st *getStream) keepOrClose() {
	t := st.s.t
	if st.isInUse() {
		st.used = time.Now()
	}
	left := keepUnused - time.Since(st.used)
	lives := st.said || t.support.needed.Load()
	if st.cur == nil || !lives || st.wanted || left <= 0 || t.wire.cfg.Transport != nil || t.wire.isLocal() {
		st.closeStream()
		return
	}
	st.kept = true
	if st.s.shared.Load() {
		t.tellSign(st.s.key.key, kept)
	}
	st.restFor(min(left, keepLook))
}

// noteUse notes a request in the session. It opens the stream where the server needs one.
func (st *getStream) noteUse(ctx context.Context) {
	if st.s.t.support.needed.Load() && st.needStream(ctx) != nil {
		st.doneStream()
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.used = time.Now()
}

// takeSign takes what another replica says of the stream.
func (st *getStream) takeSign(sign string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch sign {
	case wanted:
		for _, n := range st.s.listeners.takeEarly() {
			st.s.t.tellAs(st.s.key.key, early, n)
		}
		if st.wanted = true; st.kept {
			st.closeStream()
		}
	case kept:
		if time.Since(st.used) < 2*keepLook || st.isInUse() {
			st.s.t.tellSign(st.s.key.key, used)
		}
	case used:
		st.used = time.Now()
	}
}

func (st *getStream) closeUnused() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.users == 0 {
		st.closeStream()
	}
}

// closeStream ends the stream. st.mu is held.
func (st *getStream) closeStream() {
	st.kept = false
	if h := st.cur; h != nil {
		if h.live.Load() {
			st.closed = h.l
		}
		h.stop()
		st.cur = nil
	}
}

// learnNeed learns from the loss of a generation whether the server needs the stream. A session that was unused for long
// was lost for that.
func (st *getStream) learnNeed(l *generation) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case time.Since(st.used) > keepUnused:
	case st.cur != nil && st.cur.live.Load():
		st.s.t.support.needed.Store(false) // the stream does not help
	case st.closed == l:
		st.s.t.support.needed.Store(true)
	}
}

// noteSaid notes that the server has said something on the stream.
func (st *getStream) noteSaid() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.said = true
}

// isInUse reports whether somebody uses the session now.
func (st *getStream) isInUse() bool {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.s.refs > 0
}

// hasUsers reports whether somebody here wants the stream.
func (st *getStream) hasUsers() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.users > 0
}
