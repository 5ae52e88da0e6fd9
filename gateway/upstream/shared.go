package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"taskgate/gateway/upstream/sse"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/work"
	"taskgate/shim"
)

const (
	// usesPerIdle is how often a replica reports its use of a session in the time after which an idle one
	// ends, and mostUnnoted is the longest time between two reports: some replica may look for sessions that have
	// been unused for five minutes.
	usesPerIdle = 10
	mostUnnoted = time.Minute
	// useLasts is after what time a use is reported that goes on: quick calls are not.
	useLasts = time.Second
	// sweepAfter gives the replicas that have used a session, and know the headers of its client, time to end it.
	sweepAfter = 5 * time.Minute
)

// shared is the state of an upstream session that replicas share.
type shared struct {
	// Generation counts the handshakes from the time of the first one, in milliseconds since 1970: a session that
	// has ended, and is begun anew, goes on above its earlier count. Version, ID, Cookie and Server are what the
	// latest handshake agreed on. An empty version says that the generation is invalid.
	Generation int64           `json:"generation"`
	Version    string          `json:"version,omitempty"`
	ID         string          `json:"id,omitempty"`
	Cookie     string          `json:"cookie,omitempty"`
	Server     json.RawMessage `json:"server,omitempty"`
	// Caps is the fingerprint of the declared capabilities, and the mark of the headers that go along.
	Caps string `json:"caps,omitempty"`
	// Level is the log level that the client has set.
	Level string `json:"level,omitempty"`
	// Ready says that the server was told that the client is ready.
	Ready bool `json:"ready,omitempty"`
	// Lists are the marks of the lists that its client has read, by the method that reads each.
	Lists map[string]uint64 `json:"lists,omitempty"`
	// Since is when the session was opened, in seconds of Unix time by the clock of the replica that opened
	// it; 0 if unknown.
	Since int64 `json:"since,omitempty"`
}

// openedAt is when the session was opened; zero if unknown.
func (st shared) openedAt() time.Time {
	if st.Since == 0 {
		return time.Time{}
	}
	return time.Unix(st.Since, 0)
}

// encode keeps the bytes of the server as they are. (json.Marshal would spell them anew.)
func (st shared) encode() []byte {
	server := st.Server
	st.Server = nil
	b, _ := json.Marshal(st) // strings: always succeeds
	if server != nil {
		b = jsonrpc.With(b, server, "server")
	}
	return b
}

// generationOf is the generation as another replica opened it.
func (st shared) generationOf() (*generation, error) {
	l := &generation{target: target{era: mcp.Legacy, session: st.ID, cookie: st.Cookie, gen: st.Generation}, born: st.openedAt()}
	l.ready.Store(st.Ready)
	return l, l.readAnswer(st.Server)
}

// isShared reports whether replicas share the session of this client.
func (t *sessionTable) isShared(s shim.Session) bool {
	return t.wire.cfg.Sessions != nil && s.Shared && s.Key != ""
}

// isOpened reports whether a replica has opened such a session.
func (t *sessionTable) isOpened(ctx context.Context, s shim.Session) bool {
	if !t.isShared(s) {
		return false
	}
	_, rev, err := t.wire.cfg.Sessions.Load(ctx, s.Key)
	return err == nil && rev != 0
}

// findGeneration returns the generation that replicas share; nil if it is invalid, or for other capabilities or headers.
func (t *sessionTable) findGeneration(ctx context.Context, s *session) (*generation, error) {
	st, _, err := t.loadShared(ctx, s.key.key)
	if err != nil || !s.isValid(st) || st.Caps != s.key.spellVariant() {
		return nil, err
	}
	return t.joinGeneration(ctx, st)
}

// joinGeneration returns the generation that another replica has opened.
func (t *sessionTable) joinGeneration(ctx context.Context, st shared) (*generation, error) {
	t.wire.numbers.takeBlock(ctx, t.wire.cfg.Sessions)
	return st.generationOf()
}

// isValid reports whether a generation was opened, and is not known here to be lost.
func (s *session) isValid(st shared) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return st.Version != "" && st.Generation > s.lost
}

func (t *sessionTable) loadShared(ctx context.Context, key string) (st shared, rev int64, err error) {
	b, rev, err := t.wire.cfg.Sessions.Load(ctx, key)
	if err == nil && rev != 0 {
		err = json.Unmarshal(b, &st)
	}
	if err != nil {
		return st, 0, storeError(err)
	}
	return st, rev, nil
}

// swapShared stores the state; 0 says that another replica was faster.
func (t *sessionTable) swapShared(ctx context.Context, key string, rev int64, st shared) (int64, error) {
	next, err := t.wire.cfg.Sessions.Swap(ctx, key, rev, st.encode())
	if err != nil {
		return 0, storeError(err)
	}
	return next, nil
}

// storeError is the error of a store that has failed. A second session beside the one that may exist would
// split what the server keeps by session.
func storeError(err error) error {
	return newError(shim.KindUnreachable, "the session with the server cannot be looked up", err)
}

// changeShared changes the state of an existing session, and reports whether it has.
func (t *sessionTable) changeShared(ctx context.Context, key string, how func(*shared)) (changed bool) {
	for {
		st, rev, err := t.loadShared(ctx, key)
		was := st
		if how(&st); err == nil && rev != 0 && (st.Level != was.Level || st.Ready != was.Ready || !maps.Equal(st.Lists, was.Lists)) {
			rev, err = t.swapShared(ctx, key, rev, st)
			if err == nil && rev == 0 {
				continue
			}
			changed = err == nil
		}
		if err != nil {
			t.wire.log.Debug("the state of a session was not noted", "err", err)
		}
		return changed
	}
}

// isIntroduced reports whether a replica has told the server of a generation that its client is
// ready.
func (t *sessionTable) isIntroduced(ctx context.Context, key string, gen int64) bool {
	st, _, err := t.loadShared(ctx, key)
	return err == nil && st.Generation == gen && st.Ready
}

// endShared removes a session that all replicas have left unused for so long, and deletes it at the server. With over its
// client has ended it.
func (t *sessionTable) endShared(ctx context.Context, key string, over bool, idle time.Duration) {
	t.work.Go(ctx, func(ctx context.Context) {
		ctx, cancel := outliveCaller(ctx, deleteTimeout)
		defer cancel()
		b, err := t.wire.cfg.Sessions.End(ctx, key, t.wire.spellName(), over, idle)
		if err != nil {
			t.wire.log.Debug("a shared session was not ended", "err", err)
		}
		if b != nil {
			t.deleteShared(ctx, b)
		}
	})
}

// deleteShared deletes at the server a session that replicas have shared.
func (t *sessionTable) deleteShared(ctx context.Context, state []byte) {
	var st shared
	if err := json.Unmarshal(state, &st); err != nil {
		t.wire.log.Debug("the state of a session was not read", "err", err)
		return
	}
	if st.ID != "" {
		l := &generation{target: target{era: mcp.Legacy, version: st.Version, session: st.ID, cookie: st.Cookie}, born: st.openedAt()}
		t.wire.sessionEnded(l, "")
		t.wire.deleteGeneration(ctx, l)
	}
}

// endUnknown ends a session that this client has not used, and whose client has ended it: a lost replica may have opened
// it.
func (t *sessionTable) endUnknown(ctx context.Context, key string) {
	t.work.Go(ctx, func(ctx context.Context) {
		if work.Pause(ctx, endedSoon) != nil { // the store knows by then who uses it
			return
		}
		idle := time.Duration(0)
		if t.haveUnnoted(ctx) {
			idle = endedIdle / 2
		}
		t.endShared(ctx, key, true, idle)
	})
}

// sweepShared ends sessions that all replicas have left unused. The replica that opened one may be lost. The server gets
// what the configuration sends with each request, and nothing of a client's: the headers and the token of one are stored
// nowhere. A server that refuses the deletion for that ends the session in its own time.
func (t *sessionTable) sweepShared(ctx context.Context) {
	states, err := t.wire.cfg.Sessions.Sweep(ctx, t.wire.cfg.SessionIdle+sweepAfter)
	if err != nil {
		t.wire.log.Debug("unused sessions were not looked for", "err", err)
	}
	for _, state := range states {
		ctx, cancel := outliveCaller(ctx, deleteTimeout)
		t.deleteShared(ctx, state)
		cancel()
	}
}

// openShared finds or opens the generation that all replicas use. It returns nil, nil if the generation is for
// other capabilities or headers.
func (s *session) openShared(ctx context.Context) (*generation, error) {
	ctx, cancel := s.t.wire.slowContext(ctx)
	defer cancel()
	for {
		st, rev, err := s.t.loadShared(ctx, s.key.key)
		switch {
		case err != nil:
			return nil, err
		case rev != 0 && st.Caps != s.key.spellVariant():
			return nil, nil
		case s.isValid(st):
			return s.t.joinGeneration(ctx, st)
		}
		l, err := s.openForAll(ctx, rev, st)
		if l != nil || err != nil {
			return l, err
		}
	}
}

// openForAll shakes hands, and stores the generation for all replicas by compare-and-set. It returns nil, nil if
// another replica was faster, and drops this generation then. A session that is a connection is not stored: the
// others need sessions of their own.
func (s *session) openForAll(ctx context.Context, rev int64, was shared) (*generation, error) {
	l, err := s.initializeServer(ctx)
	if err != nil || sse.Local(l.session) {
		return l, err
	}
	l.gen = max(was.Generation+1, time.Now().UnixMilli())
	rev, err = s.t.swapShared(ctx, s.key.key, rev, shared{
		Generation: l.gen, Version: l.version, ID: l.session, Cookie: l.cookie, Server: l.server.Raw,
		Caps: s.key.spellVariant(), Level: was.Level, Lists: was.Lists, Since: l.born.Unix(),
	})
	if err != nil || rev == 0 {
		s.t.discardGeneration(ctx, l)
		return nil, err
	}
	return l, nil
}

// others are the replicas that share sessions with this one. A server sends a message once, on any stream,
// and its addressee may be at another replica: the call with that progress token, or the listener of the
// client. So a message that is unwanted here is told to all replicas.
type others struct {
	heard  sync.Once
	untold chan sessionNews // waits for the store; beyond mostUntold messages are dropped, so that a slow store delays nobody
}

// sessionNews is a notification in the session of a key.
type sessionNews struct {
	key     string
	message []byte
}

const (
	mostUntold = 256
	maxTold    = 64 << 10 // bytes of one
)

// hearOthers begins to tell the other replicas, and to hear them. Only the first call counts.
func (t *sessionTable) hearOthers() {
	t.others.heard.Do(func() {
		t.others.untold = make(chan sessionNews, mostUntold)
		t.work.Go(context.Background(), func(ctx context.Context) {
			for {
				select { // tellOthers wakes it
				case n := <-t.others.untold:
					t.tellNow(ctx, n)
				case <-ctx.Done():
					return
				}
			}
		})
		t.work.Go(context.Background(), func(ctx context.Context) { t.wire.cfg.Sessions.Hear(ctx, t.takeTold) })
	})
}

// tellOthers tells the other replicas of a notification, if it is small enough. It does not block.
func (t *sessionTable) tellOthers(key string, n shim.Notification) { t.tellAs(key, "", n) }

// tellAs is tellOthers with a sign before the notification.
func (t *sessionTable) tellAs(key, sign string, n shim.Notification) {
	if len(n.Params) > maxTold {
		return
	}
	message := jsonrpc.AppendNotification([]byte(t.wire.spellName()+" "+sign), n.Method, n.Params)
	jsonrpc.OneLine(message)
	select {
	case t.others.untold <- sessionNews{key, message}:
	default:
	}
}

// The signs are messages about the GET stream of a session.
const (
	freed  = "freed"  // a replica has closed it
	wanted = "wanted" // a replica would have it
	kept   = "kept"   // a replica keeps it for the server; who uses the session says so
	used   = "used"   // a replica uses the session
	early  = "early " // before a notification: it was kept for the first listener
)

// tellSign tells the other replicas a sign. It does not block.
func (t *sessionTable) tellSign(key, sign string) {
	select {
	case t.others.untold <- sessionNews{key, []byte(t.wire.spellName() + " " + sign)}:
	default:
	}
}

// tellFreed tells the other replicas that they can open the GET stream of a session. It also works while this
// replica stops.
func (t *sessionTable) tellFreed(ctx context.Context, key string) {
	ctx, cancel := outliveCaller(ctx, cancelTimeout)
	defer cancel()
	t.tellNow(ctx, sessionNews{key, []byte(t.wire.spellName() + " " + freed)})
}

// tellNow tells the other replicas. A failure is only logged.
func (t *sessionTable) tellNow(ctx context.Context, n sessionNews) {
	if err := t.wire.cfg.Sessions.Tell(ctx, n.key, n.message); err != nil {
		t.wire.log.Debug("what a server said was not told to other replicas", "err", err)
	}
}

// takeTold takes a message of another replica, or of another client of this one. A client skips its own
// messages.
func (t *sessionTable) takeTold(key string, message []byte) {
	from, text, _ := bytes.Cut(message, []byte(" "))
	text, isEarly := bytes.CutPrefix(text, []byte(early))
	m, err := jsonrpc.ParseLenient(text)
	if string(from) == t.wire.spellName() {
		return
	}
	t.mu.Lock()
	variants := slices.Collect(maps.Values(t.m[key]))
	t.mu.Unlock()
	for _, s := range variants {
		switch sign := string(text); {
		case sign == freed:
			s.get.nudgeStream(true)
			continue
		case err != nil:
			s.get.takeSign(sign)
			continue
		case isEarly && !s.listeners.takesFrom(string(from)):
			continue
		}
		s.passNotification(shim.Notification{Method: m.Method, Params: m.Params})
	}
}

// usePause is the time between two reports of the use of a session.
func (t *sessionTable) usePause() time.Duration {
	return min(t.wire.cfg.SessionIdle/usesPerIdle, mostUnnoted)
}

// sessionUsage tells the store that this client uses a session that replicas share. session.mu guards it.
type sessionUsage struct {
	s     *session
	timer *time.Timer // tells the store of a use, each minute; nil while the session is unused
	soon  *time.Timer // tells the store of a use that lasts
	noted bool        // the store knows that this client uses the session
	turn  work.Turn   // to tell the store
}

// beginUse notes a pin. session.mu is held.
func (u *sessionUsage) beginUse() {
	if u.timer == nil {
		u.timer = time.AfterFunc(u.s.t.usePause(), u.repeatNote)
	}
	if u.soon == nil {
		u.soon = time.AfterFunc(useLasts, u.noteUse)
	} else if u.s.refs == 1 {
		u.soon.Reset(useLasts)
	}
}

// endUse notes the last release. session.mu is held.
func (u *sessionUsage) endUse() {
	if u.soon != nil {
		u.soon.Stop()
	}
	if u.noted {
		u.noteUse()
	}
}

// repeatNote notes that the session was used since the last time, and repeats that while it is used. It runs on a timer.
func (u *sessionUsage) repeatNote() {
	u.s.mu.Lock()
	if u.s.refs == 0 {
		u.timer = nil
	} else {
		u.timer.Reset(u.s.t.usePause())
	}
	u.s.mu.Unlock()
	u.noteUse()
}

// noteUse tells the store, in the background, whether this client uses the session now.
func (u *sessionUsage) noteUse() {
	s, t := u.s, u.s.t
	t.work.Go(context.Background(), func(ctx context.Context) {
		if u.turn.TakeWithin(ctx) != nil {
			return
		}
		defer u.turn.Give()
		s.mu.Lock()
		uses := s.refs > 0
		u.noted = uses
		s.mu.Unlock()
		over, err := t.wire.cfg.Sessions.Use(ctx, s.key.key, t.wire.spellName(), uses)
		if err != nil {
			t.wire.log.Debug("the use of a session was not noted", "err", err)
		}
		if over {
			t.endAfterUse(s)
		}
		if l := s.currentGeneration(); l != nil && !l.opened {
			t.wire.numbers.takeBlock(ctx, t.wire.cfg.Sessions)
		}
	})
}
