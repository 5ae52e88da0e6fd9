package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

// Sessions keeps what replicas share of upstream sessions, so that a client session
// has one upstream session whichever replica it uses (design.md 0.16). A state is
// opaque to it. It speaks of standard types only, so that a store can implement it
// that does not know this package.
type Sessions interface {
	// Load returns the state under a key and its revision; 0 says there is none.
	Load(ctx context.Context, key string) (state []byte, rev int64, err error)

	// Swap stores a state where the revision still is rev, and returns the new one;
	// 0 if it has moved on. With rev 0 there must be none yet.
	Swap(ctx context.Context, key string, rev int64, state []byte) (int64, error)

	// Hold says that this replica needs the session for so long; 0 lets go of it.
	Hold(ctx context.Context, key string, d time.Duration) error

	// End says, if over is set, that nobody will begin anything in the session any
	// more. Once that was said, and no other replica holds it, the state is removed
	// and returned to whoever asked; nil otherwise.
	End(ctx context.Context, key string, over bool) (state []byte, err error)
}

const (
	// holdAfter is how long a session is in use before other replicas are told, so
	// that short calls cost nothing; endAfter is how much longer its end waits for
	// those who are about to tell.
	holdAfter = 500 * time.Millisecond
	endAfter  = 2 * holdAfter
	// holdFor is how long a hold lasts, if the replica dies; it is renewed in time.
	holdFor = 30 * time.Second
	// firstLook and lastLook bound the pause between two looks at a session that
	// another replica is opening.
	firstLook = 10 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// shared is the state of an upstream session that replicas share.
type shared struct {
	// Generation counts the handshakes. Version, ID and Server are what the latest
	// agreed on; without a version there is none that is good.
	Generation int64           `json:"generation"`
	Version    string          `json:"version,omitempty"`
	ID         string          `json:"id,omitempty"`
	Server     json.RawMessage `json:"server,omitempty"`
	// Caps is the fingerprint of what was declared.
	Caps string `json:"caps,omitempty"`
	// Opening is the replica that is shaking hands.
	Opening string `json:"opening,omitempty"`
	// Level is the log level that the client has set.
	Level string `json:"level,omitempty"`
}

func (st shared) encode() []byte {
	b, _ := json.Marshal(st) // strings and a message that was parsed: cannot fail
	return b
}

// link is the session as another replica opened it.
func (st shared) link() (*link, error) {
	l := &link{gen: st.Generation, id: st.ID}
	return l, l.read(st.Server)
}

// load reads the state of a shared session.
func (s *session) load(ctx context.Context) (st shared, rev int64, err error) {
	b, rev, err := s.h.cfg.Sessions.Load(ctx, s.key.key)
	if err == nil && rev != 0 {
		err = json.Unmarshal(b, &st)
	}
	if err != nil {
		return st, 0, s.unknown(err)
	}
	return st, rev, nil
}

// swap stores it; 0 says that another replica was faster.
func (s *session) swap(ctx context.Context, rev int64, st shared) (int64, error) {
	next, err := s.h.cfg.Sessions.Swap(ctx, s.key.key, rev, st.encode())
	if err != nil {
		return 0, s.unknown(err)
	}
	return next, nil
}

// unknown is the error of a store that does not answer. Opening a session beside the
// one that may be there would split what the server keeps by session.
func (s *session) unknown(err error) error {
	return fail(kindUnreachable, "the session with the server cannot be looked up", err)
}

// agree finds or opens the generation that all replicas use. One of them shakes
// hands, by compare-and-set on the generation, and the others wait for it.
func (s *session) agree(ctx context.Context) (*link, error) {
	ctx, cancel := s.h.slow(ctx)
	defer cancel()
	var waited int64 // the revision that was waited at
	since := time.Now()
	for look := firstLook; ; look = min(2*look, lastLook) {
		st, rev, err := s.load(ctx)
		switch {
		case err != nil:
			return nil, err
		case rev != 0 && st.Caps != s.key.caps:
			return s.h.initialize(ctx, s, 1) // other abilities: not to be shared
		case st.Version != "" && st.Generation > s.gone():
			return st.link()
		case st.Opening != "" && (rev != waited || time.Since(since) < s.h.cfg.ProbeTimeout/2):
			if rev != waited {
				waited, since = rev, time.Now()
			}
			if err := pause(ctx, look); err != nil {
				return nil, err
			}
			continue
		}
		l, err := s.reopen(ctx, rev, st)
		if l != nil || err != nil {
			return l, err
		}
	}
}

// gone is the latest generation that the server has lost.
func (s *session) gone() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// reopen shakes hands on behalf of all replicas. It returns nil, nil if another one
// was faster.
func (s *session) reopen(ctx context.Context, rev int64, was shared) (*link, error) {
	st := shared{Generation: was.Generation + 1, Caps: s.key.caps, Level: was.Level, Opening: s.h.cfg.Replica}
	rev, err := s.swap(ctx, rev, st)
	if rev == 0 || err != nil {
		return nil, err
	}
	l, err := s.h.initialize(ctx, s, st.Generation)
	st.Opening = ""
	if err != nil {
		late, cancel := aside(ctx, cancelTimeout)
		defer cancel()
		if _, serr := s.swap(late, rev, st); serr != nil { // the others find out by waiting
			s.h.log.Debug("a failed handshake was not noted", "err", serr)
		}
		return nil, err
	}
	s.h.setLevel(ctx, s, l, st.Level)
	st.Version, st.ID, st.Server = l.version, l.id, l.server.Raw
	switch next, err := s.swap(ctx, rev, st); {
	case err != nil:
		s.h.discard(l)
		return nil, err
	case next == 0: // this replica was given up
		s.h.discard(l)
		return nil, nil
	}
	return l, nil
}

// openElsewhere reports whether another replica has opened a session.
func (h *HTTP) openElsewhere(ctx context.Context, s shim.Session) bool {
	if h.cfg.Sessions == nil || !s.Shared || s.Key == "" {
		return false
	}
	_, rev, err := h.cfg.Sessions.Load(ctx, s.Key)
	return err == nil && rev != 0
}

// setLevel tells the server of a new generation the log level that the client had set
// in the one before. That this fails costs log messages, never the call.
func (h *HTTP) setLevel(ctx context.Context, s *session, l *link, level string) {
	if level == "" {
		return
	}
	params := json.RawMessage(append(jsonrpc.AppendString([]byte(`{"level":`), level), '}'))
	x := h.legacyExchange(s, l.target(), shim.Request{Method: mcp.MethodSetLevel, Params: params}, discard{})
	x.handshake = true
	if m, err := x.run(ctx); err != nil || m.Error != nil {
		h.log.Debug("log level was not set again", "err", err, "answer", m.Error)
	}
}

// noteLevel remembers the level that the client has set, for the next generation.
func (s *session) noteLevel(ctx context.Context, level string) {
	s.mu.Lock()
	s.level = level
	s.mu.Unlock()
	for s.shared {
		st, rev, err := s.load(ctx)
		if err == nil && rev != 0 && st.Level != level {
			st.Level = level
			rev, err = s.swap(ctx, rev, st)
			if err == nil && rev == 0 {
				continue
			}
		}
		if err != nil {
			s.h.log.Debug("the log level of a session was not noted", "err", err)
		}
		return
	}
}

// hold tells the other replicas that the session is in use here. It runs on a timer.
func (s *session) hold() {
	s.mu.Lock()
	if s.refs == 0 {
		s.mu.Unlock()
		return
	}
	s.held = true
	s.holder.Reset(holdFor / 3)
	s.mu.Unlock()
	s.h.spawn(context.Background(), func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, holdFor/3)
		defer cancel()
		if err := s.h.cfg.Sessions.Hold(ctx, s.key.key, holdFor); err != nil {
			s.h.log.Debug("the use of a session was not noted", "err", err)
		}
	})
}

// letGo undoes hold, and ends the session at the server if that was left to the last
// one to use it.
func (s *session) letGo(held, over bool) {
	if !held && !over {
		return
	}
	s.h.spawn(context.Background(), func(ctx context.Context) {
		ctx, cancel := aside(ctx, deleteTimeout)
		defer cancel()
		if held {
			if err := s.h.cfg.Sessions.Hold(ctx, s.key.key, 0); err != nil {
				s.h.log.Debug("a session was not let go of", "err", err)
			}
		}
		s.h.endShared(ctx, s.key.key, over)
	})
}

// endShared deletes a shared session at the server, if it is over and nobody else
// uses it.
func (h *HTTP) endShared(ctx context.Context, key string, over bool) {
	b, err := h.cfg.Sessions.End(ctx, key, over)
	var st shared
	if err == nil && b != nil {
		err = json.Unmarshal(b, &st)
	}
	switch {
	case err != nil:
		h.log.Debug("a shared session was not ended", "err", err)
	case st.ID != "":
		h.deleteLink(ctx, &link{id: st.ID, version: st.Version})
	}
}

// endLater is endShared once every replica has had the time to say that it still
// uses the session.
func (h *HTTP) endLater(key string) {
	h.spawn(context.Background(), func(ctx context.Context) {
		_ = pause(ctx, endAfter) // a leg that closes ends it now
		ctx, cancel := aside(ctx, deleteTimeout)
		defer cancel()
		h.endShared(ctx, key, true)
	})
}

// discard deletes a generation that nobody uses.
func (h *HTTP) discard(l *link) {
	if l.id == "" {
		return
	}
	h.spawn(context.Background(), func(ctx context.Context) {
		// Close ends the leg's life, but what it has begun to end is ended.
		ctx, cancel := aside(ctx, deleteTimeout)
		defer cancel()
		h.deleteLink(ctx, l)
	})
}

// deleteLink tells the server that a session is over (X11). Whether it cares (405 is
// allowed) is its business.
func (h *HTTP) deleteLink(ctx context.Context, l *link) {
	req, err := h.request(ctx, http.MethodDelete, l.target(), nil)
	if err == nil {
		err = h.finish(req, target{})
	}
	if err != nil {
		h.log.Debug("session was not deleted", "err", fmt.Sprint(err))
	}
}
