package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"taskgate/shim"
)

const (
	// sessionFresh is how long a state that was read is believed without looking
	// again. A change elsewhere is heard of, so this only bounds how long a lost
	// message goes unnoticed.
	sessionFresh = 5 * time.Second
	// sessionTick is how often the store is told which sessions are in use.
	sessionTick = 5 * time.Second
	// sessionName bounds what may be the id of a session: clients ask for any.
	sessionName = 256
	// signalTime and signalMax bound the signals that wait to be read.
	signalTime = time.Minute
	signalMax  = 4096
)

// Sessions keeps the states of client sessions, for every replica over one Redis.
//
// A session is a hash that Redis lets expire when it has been idle. A sorted set of
// all sessions says how many there are, and which may have ended, so that somebody
// can be told; it is a hint, and the hash is the truth. What was read is kept for a
// moment, and for as long as Redis is away: an outage ends no session.
type Sessions struct {
	store    *Store
	max      int
	perOwner atomic.Int64
	idle     time.Duration
	tick     time.Duration
	*sessionLogs

	mu    sync.Mutex
	known map[string]*knownSession
	now   moment
	// busy, ended and signal are those of Run.
	busy   func(string) bool
	ended  func(string, []byte)
	signal func(id, text, token string, at time.Time)
}

// moment counts what was heard of changes, and what was written here.
type moment struct{ heard, wrote int64 }

// knownSession is a session that this replica has used.
type knownSession struct {
	state  []byte
	rev    int64
	owner  string          // the digest of its name
	wrote  int64           // the number of the last write here
	read   time.Time       // when it was last known to be so; zero: look again
	used   time.Time       // when it was last asked for
	kept   time.Time       // when its expiry, and that of its log, was last put off, and its signals were read
	awaits bool            // the event of a signal that was read is on its way
	told   map[string]bool // signals that were told here, as they are stored
}

// Sessions keeps at most limit sessions, each until it has been idle for the given time. A
// new session beyond that is refused with a *shim.BusyError. The bound holds for all replicas
// together, which should agree on it.
func (s *Store) Sessions(limit int, idle time.Duration) *Sessions {
	c := &Sessions{
		store: s, max: limit, idle: idle,
		tick:   min(sessionTick, max(idle/8, 50*time.Millisecond)),
		known:  map[string]*knownSession{},
		busy:   func(string) bool { return false },
		ended:  func(string, []byte) {},
		signal: func(string, string, string, time.Time) {},
	}
	told, _ := lru.New[string, int64](maxTold) // fails for a size that is not positive alone
	c.sessionLogs = &sessionLogs{
		store: s, told: told, heart: shim.NewHeart(s, shim.Replica(rand.Text()), 3*sessionTick, s.log), messages: logMessages, bytes: logBytes, afterEnd: logAfterEnd,
		logTTL: 2 * c.ttl(), watches: map[string][]*stateWatch{},
	}
	return c
}

// As has the replica with this heart keep the streams of sessions. They have a name of their own before.
func (c *Sessions) As(h *shim.Heart) *Sessions {
	c.heart = h
	return c
}

// PerOwner bounds the sessions of one owner, if n is not 0. One more is refused with a
// *shim.BusyError. It may be called again.
func (c *Sessions) PerOwner(n int) *Sessions {
	c.perOwner.Store(int64(n))
	return c
}

// ttl is how long Redis keeps a session from its last use.
func (c *Sessions) ttl() time.Duration { return c.idle + c.store.opts.slack }

// Get returns the state of a session and its revision; revision 0 says that there is
// none. An error says that it cannot be known just now.
func (c *Sessions) Get(ctx context.Context, id string) ([]byte, int64, error) {
	if len(id) > sessionName {
		return nil, 0, nil
	}
	if state, rev, ok := c.readCached(id, false); ok {
		return state, rev, nil
	}
	state, rev, err := c.readState(ctx, id, true)
	if err == nil {
		return state, rev, nil
	}
	if state, rev, ok := c.readCached(id, true); ok {
		return state, rev, nil
	}
	return nil, 0, err
}

// readCached returns a state that was read a moment ago, or, where there is nothing
// better, at any time, and notes the use.
func (c *Sessions) readCached(id string, anyAge bool) ([]byte, int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[id]
	if k == nil {
		return nil, 0, false
	}
	k.used = time.Now()
	if !anyAge && time.Since(k.read) >= sessionFresh {
		return nil, 0, false
	}
	return k.state, k.rev, true
}

// readState looks a session up. That puts off its expiry if it is used.
func (c *Sessions) readState(ctx context.Context, id string, use bool) (state []byte, rev int64, err error) {
	begun := c.moment()
	ttl := time.Duration(0)
	if use {
		ttl = c.ttl()
	}
	got, err := c.store.fetchState(ctx, c.store.keys.session(id), ttl)
	if err != nil {
		return nil, 0, err
	}
	if got.rev == 0 {
		c.noteEnded(id)
		return nil, 0, nil
	}
	c.learnState(id, got, begun, use)
	return got.state, got.rev, nil
}

func (c *Sessions) moment() moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// learnState keeps what was read or written, and wakes who watches the session if it is new. The store
// is right, also where it has gone back to an older state; only what was asked of it before the
// last write here may be older than that. What was heard since it was asked for may have been about it: then
// it is kept, but not believed.
func (c *Sessions) learnState(id string, got stored, begun moment, used bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[id]
	if k == nil {
		if !used {
			return
		}
		k = &knownSession{}
		c.known[id] = k
	}
	if begun.wrote < k.wrote && got.rev != k.rev {
		k.read = time.Time{}
		return
	}
	if got.rev != k.rev {
		c.wakeWatchers(id)
	}
	k.state, k.rev, k.owner, k.read = got.state, got.rev, cmp.Or(got.owner, k.owner), time.Time{}
	if begun.heard == c.now.heard {
		k.read = time.Now()
	}
	if used {
		k.used = time.Now()
	}
}

// noteEnded forgets a session that is gone, and tells that it has ended if it was known.
func (c *Sessions) noteEnded(id string) {
	if state, known := c.forgetSession(id); known {
		c.onEnded()(id, state)
	}
}

// doubtState makes the next Get look again.
func (c *Sessions) doubtState(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.heard++
	if k := c.known[id]; k != nil {
		k.read = time.Time{}
	}
}

// Make makes a session that counts towards the bounds of its owner, and returns its
// revision; 0 if there is one with this id. An owner without a name is whoever is not
// known by name: all of those together, and without a bound of their own.
func (c *Sessions) Make(ctx context.Context, id, owner string, state []byte) (int64, error) {
	if len(id) > sessionName {
		return 0, nil
	}
	most := int(c.perOwner.Load())
	if owner == "" {
		most = 0
	}
	if err := c.enterSets(ctx, id, digest(owner), most); err != nil {
		return 0, err
	}
	return c.putState(ctx, id, stored{state: state, owner: digest(owner)})
}

// Put stores the state where the revision still is rev, and returns the new one, which no
// state has had before. It returns 0 and changes nothing if the revision has moved on, or there is no such session.
func (c *Sessions) Put(ctx context.Context, id string, rev int64, state []byte) (int64, error) {
	if len(id) > sessionName || rev == 0 {
		return 0, nil
	}
	return c.putState(ctx, id, stored{state: state, rev: rev})
}

// putState stores a state in place of that with its revision.
func (c *Sessions) putState(ctx context.Context, id string, next stored) (int64, error) {
	begun := c.moment()
	rev, err := c.store.swapState(ctx, swap{
		key: c.store.keys.session(id), id: id, stored: next, ttl: c.ttl(), channel: c.store.keys.sessionEvents(),
	})
	if rev == 0 { // on an error it may have been stored all the same
		c.doubtState(id)
		return 0, err
	}
	next.rev, next.state = rev, append([]byte(nil), next.state...)
	c.learnState(id, next, begun, true)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.wrote++
	if k := c.known[id]; k != nil {
		k.wrote = c.now.wrote
	}
	return rev, nil
}

// stored is a state in the store.
type stored struct {
	state []byte
	rev   int64
	owner string // the digest of its name; "" where it is not about that
}

// swap is a change of a state with a revision.
type swap struct {
	key, id string
	stored
	ttl     time.Duration
	channel string // where it is to be heard of; "" for nowhere
}

// swapState makes a change if the revision is still the one it is based on, and returns
// the new one; 0 if it has moved on.
func (s *Store) swapState(ctx context.Context, w swap) (int64, error) {
	a := &argv{}
	a.add(w.id)
	a.addInt(w.rev)
	a.list = append(a.list, w.state)
	a.add(millis(w.ttl), w.channel, rand.Text(), w.owner)
	a.addInt(int64(mathrand.IntN(4096)))
	next := int64(0)
	err := s.doRepeated(ctx, "swap", func(ctx context.Context) error {
		v, err := sessionPutScript.runOn(ctx, s.client, []string{w.key}, a)
		if err == nil && v[0] == codeOK {
			next, err = strconv.ParseInt(v[1], 10, 64)
		}
		return err
	})
	return next, err
}

// fetchState reads a state and its revision, 0 if there is none. Its expiry is put off if
// ttl is not 0.
func (s *Store) fetchState(ctx context.Context, key string, ttl time.Duration) (got stored, err error) {
	var newer error
	err = s.doRepeated(ctx, "state", func(ctx context.Context) error {
		p := s.client.Pipeline()
		cmd := p.HMGet(ctx, key, "rev", "state", "owner", fieldFormat)
		if ttl != 0 {
			p.PExpire(ctx, key, ttl)
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
		got, newer = stored{}, nil
		if v := cmd.Val(); v[0] != nil && v[1] != nil {
			got.rev, _ = strconv.ParseInt(v[0].(string), 10, 64)
			got.state = []byte(v[1].(string))
			got.owner, _ = v[2].(string)
			stored, _ := v[3].(string)
			newer = checkFormat(stored)
		}
		return nil
	})
	return got, cmp.Or(err, newer)
}

// enterSets puts a new session among those that exist, or says which bound refuses it.
func (c *Sessions) enterSets(ctx context.Context, id, owner string, most int) error {
	a := &argv{}
	a.add(id)
	a.addInt(int64(c.max), int64(most), c.life().Milliseconds())
	keys := []string{c.store.keys.sessions(), c.store.keys.sessionsOf(owner)}
	return c.store.doRepeated(ctx, "session enter", func(ctx context.Context) error {
		reply, err := sessionEnterScript.runOn(ctx, c.store.client, keys, a)
		switch {
		case err != nil:
			return err
		case reply[0] == codeOK:
			return nil
		case reply[1] != "":
			return &shim.BusyError{Key: "max_sessions_per_owner", Limit: "sessions of this caller", RetryAfter: time.Second}
		}
		return &shim.BusyError{Key: "max_sessions", Limit: "sessions", RetryAfter: time.Second}
	})
}

// life is after how long without use a session has ended, as far as the sets know.
func (c *Sessions) life() time.Duration { return c.ttl() + 2*c.tick }

// Delete ends a session. It is no error if there is none.
func (c *Sessions) Delete(ctx context.Context, id string) error {
	if len(id) > sessionName {
		return nil
	}
	owner, err := c.ownerOf(ctx, id)
	if err != nil {
		return err
	}
	c.forgetSession(id)
	if err := c.endSession(ctx, id); err != nil {
		return err
	}
	c.doubtState(id) // whoever reads it now may have asked before
	c.forgetSession(id)
	return c.store.doRepeated(ctx, "session delete", func(ctx context.Context) error {
		p := c.store.client.Pipeline()
		p.ZRem(ctx, c.store.keys.sessions(), id)
		p.ZRem(ctx, c.store.keys.sessionsOf(owner), id)
		_, err := p.Exec(ctx)
		return err
	})
}

// ownerOf is the digest of the name of a session's owner.
func (c *Sessions) ownerOf(ctx context.Context, id string) (string, error) {
	c.mu.Lock()
	k := c.known[id]
	c.mu.Unlock()
	if k != nil {
		return k.owner, nil
	}
	got, err := c.store.fetchState(ctx, c.store.keys.session(id), 0)
	return got.owner, err
}

// endSession deletes what is stored of a session, and lets all replicas know.
func (c *Sessions) endSession(ctx context.Context, id string) error {
	a := &argv{}
	a.add(id, c.store.keys.sessionEvents())
	return c.store.doRepeated(ctx, "session end", func(ctx context.Context) error {
		_, err := sessionEndScript.runOn(ctx, c.store.client, c.store.keys.ofSession(id), a)
		return err
	})
}

// forgetSession drops a session and tells nobody. It returns its state, and whether it was known.
func (c *Sessions) forgetSession(id string) (state []byte, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[id]
	if k == nil {
		return nil, false
	}
	delete(c.known, id)
	return k.state, true
}

func (c *Sessions) onEnded() func(string, []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// Signal sends a signal of one line to the replicas that know a session. It is not kept for long: they
// hear it at once, or as soon as their connection to Redis is back, or else at their next
// look. The token goes only to those who hear it at once: it is stored nowhere.
func (c *Sessions) Signal(ctx context.Context, id, text, token string) error {
	a := &argv{}
	a.add(id, rand.Text(), text, millis(signalTime)) // a name of its own: the same may be said again
	a.addInt(signalMax)
	a.add(c.store.keys.sessionEvents(), token)
	return c.store.doRepeated(ctx, "session signal", func(ctx context.Context) error {
		_, err := sessionSignalScript.runOn(ctx, c.store.client, []string{c.store.keys.signals(id)}, a)
		return err
	})
}
