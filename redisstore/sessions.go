package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// sessionFresh is how long a state that was read is believed. Events tell of changes at other replicas,
	// so this only bounds how long a lost event has an effect.
	sessionFresh = 5 * time.Second
	// sessionTick is how often the store is told which sessions are in use.
	sessionTick = 5 * time.Second
	// sessionName bounds the ids of sessions that are looked for, in bytes: clients may send any id.
	sessionName = 256
	// signalTime and signalMax bound the signals that wait to be read.
	signalTime = time.Minute
	signalMax  = 4096
)

// Sessions keeps the states of client sessions, for every replica over one Redis.
//
// A session is a hash that Redis lets expire when it has been idle. A sorted set of all sessions counts them,
// and shows which may have ended, so that a replica can report the end. The set is a hint, and the hash is
// the truth. A state that was read is cached for a moment, and for as long as Redis is away: an outage ends
// no session.
type Sessions struct {
	store    *Store
	max      int
	perOwner atomic.Int64
	halved   atomic.Bool
	usage    atomic.Value // a float64
	idle     time.Duration
	tick     time.Duration
	looks    looks
	*sessionLogs

	mu    sync.Mutex
	known map[string]*knownSession
	now   moment
	// busy, ended and signal are the arguments of Run.
	busy   func(string) bool
	ended  func(string, []byte)
	signal func(id, text, token string, at time.Time)
}

// moment counts the changes that were heard of, and the writes of this replica.
type moment struct{ heard, wrote int64 }

// knownSession is a session that this replica has used.
type knownSession struct {
	state  []byte
	rev    int64
	shares []string        // the digests of those that it counts towards
	begun  bool            // a request besides the handshake has come, and the sets know it
	wrote  int64           // the number of the last write here
	read   time.Time       // when it was last known to be current; zero: look again
	used   time.Time       // when it was last asked for
	kept   time.Time       // when Run last looked after it
	clear  time.Time       // when its log can be cleared of ended streams; zero if it has none
	open   time.Time       // when the sets last heard that a call or a stream is open
	awaits bool            // the event of a signal that was read is on its way
	told   map[string]bool // signals that this replica has handed on, as they are stored
}

// Sessions keeps at most limit sessions, each until it has been idle for the given time. The limit holds for all
// replicas together, which should have the same. [Sessions.Make] says what happens when it is reached. h is the heart
// of the replica that holds the streams of sessions.
func (s *Store) Sessions(h Heart, limit int, idle time.Duration) *Sessions {
	c := &Sessions{
		store: s, max: limit, idle: idle,
		tick:  min(sessionTick, max(idle/8, 50*time.Millisecond)),
		known: map[string]*knownSession{}, looks: looks{keeps: s.embedded != nil, of: map[string]*leavers{}},
		busy:   func(string) bool { return false },
		ended:  func(string, []byte) {},
		signal: func(string, string, string, time.Time) {},
	}
	told, _ := lru.New[string, int64](maxTold) // it fails only for a size below 1
	c.sessionLogs = &sessionLogs{
		store: s, told: told, heart: h, messages: logMessages, bytes: logBytes, afterEnd: logAfterEnd,
		logTTL: 2 * c.ttl(), watches: map[string][]*stateWatch{},
		halved: &c.halved,
		knownShares: func(id string) []string {
			c.mu.Lock()
			defer c.mu.Unlock()
			if k := c.known[id]; k != nil {
				return k.shares
			}
			return nil
		},
	}
	return c
}

// PerOwner bounds the sessions of one owner; 0 means unbounded. It may be called again.
func (c *Sessions) PerOwner(n int) *Sessions {
	c.perOwner.Store(int64(n))
	return c
}

// Halve says whether those without an owner have half of the limit together, or all of it. It may be called again.
func (c *Sessions) Halve(halved bool) *Sessions {
	c.halved.Store(halved)
	return c
}

// ttl is how long Redis keeps a session from its last use.
func (c *Sessions) ttl() time.Duration { return c.idle + c.store.opts.slack }

// Get returns the state of a session and its revision; revision 0 means that there is none. It returns an
// error if the store fails and the cache lacks the session.
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

// readCached returns a cached state that is fresh, or of any age if anyAge is true, and notes the use.
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

// readState reads a session from the store. If use is true, that renews its expiry.
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

// learnState keeps a state that was read or written, and wakes those who watch the session if the state is
// new. The store is right, even after it has gone back to an older state. A read that began before the last
// write of this replica may be older than that write and is dropped. If an event came since the read began,
// it may have been about this session: the state is kept, and the next Get looks again.
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
	k.state, k.rev, k.read = got.state, got.rev, time.Time{}
	if len(got.shares) > 0 {
		k.shares = got.shares
	}
	if begun.heard == c.now.heard {
		k.read = time.Now()
	}
	if used {
		k.used = time.Now()
	}
}

// noteEnded forgets a session that is gone, and reports its end if it was known.
func (c *Sessions) noteEnded(id string) {
	if state, known := c.forgetSession(id); known {
		c.onEnded()(id, state)
	}
}

// doubtState makes the next Get ask the store.
func (c *Sessions) doubtState(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.heard++
	if k := c.known[id]; k != nil {
		k.read = time.Time{}
	}
}

// Make makes a session, and returns its revision; 0 if a session has this id. It counts towards the share of its
// owner, or of all without an owner and of their address, "" for none. If a share is full, another session of that
// share makes room for it (see enterSets). If none can, the error is a *shim.BusyError.
func (c *Sessions) Make(ctx context.Context, id, owner, address string, state []byte) (int64, error) {
	shares := c.sharesOf(owner, address)
	if err := c.enterSets(ctx, id, shares); err != nil {
		return 0, err
	}
	return c.putState(ctx, id, stored{state: state, shares: namesOf(shares)})
}

// Put stores the state if the revision still is rev, and returns the new revision, which differs from all
// earlier ones. If the revision has moved on, or the session is missing, it returns 0 and changes nothing.
func (c *Sessions) Put(ctx context.Context, id string, rev int64, state []byte) (int64, error) {
	if rev == 0 {
		return 0, nil
	}
	return c.putState(ctx, id, stored{state: state, rev: rev})
}

// putState stores a state in place of the one with its revision.
func (c *Sessions) putState(ctx context.Context, id string, next stored) (int64, error) {
	begun := c.moment()
	rev, err := c.store.swapState(ctx, swap{
		keys: []string{c.store.keys.session(id), changesOf(c.store.keys, id)}, id: id, stored: next, ttl: c.ttl(), channel: c.store.keys.sessionEvents(),
	})
	if rev == 0 { // after an error the state may still have been stored
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

type stored struct {
	state  []byte
	rev    int64
	shares []string // the digests of those that it counts towards; none in a change leaves them
}

// swap is a change of a state that is based on a revision.
type swap struct {
	keys []string // of the state, and of the set of changes if there is a channel
	id   string
	stored
	ttl     time.Duration
	channel string // of the event of the change; "" for none
}

// swapState makes a change if the revision is still the one that it is based on, and returns the new
// revision; 0 if the revision has moved on.
func (s *Store) swapState(ctx context.Context, w swap) (int64, error) {
	a := &argv{}
	a.add(w.id)
	a.addInt(w.rev)
	a.list = append(a.list, w.state)
	a.add(millis(w.ttl), w.channel, rand.Text(), strings.Join(w.shares, " "))
	a.addInt(int64(mathrand.IntN(4096)))
	next := int64(0)
	err := s.doRepeated(ctx, "swap", func(ctx context.Context) error {
		v, err := sessionPutScript.runOn(ctx, s.client, w.keys, a)
		if err == nil && v[0] == codeOK {
			next, err = strconv.ParseInt(v[1], 10, 64)
		}
		return err
	})
	return next, err
}

// fetchState reads a state and its revision, 0 if there is none. It renews the expiry if ttl is not 0.
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
			shares, _ := v[2].(string)
			got.shares = strings.Fields(shares)
			stored, _ := v[3].(string)
			newer = checkFormat(stored)
		}
		return nil
	})
	return got, cmp.Or(err, newer)
}

// life is how long without use a session lives according to the sets.
func (c *Sessions) life() time.Duration { return c.ttl() + 2*c.tick }

// Delete ends a session. It returns nil if there is none.
func (c *Sessions) Delete(ctx context.Context, id string) error {
	got, err := c.store.fetchState(ctx, c.store.keys.session(id), 0) // it has the owner
	if err != nil {
		return err
	}
	c.forgetSession(id)
	if err := c.endSession(ctx, id); err != nil {
		return err
	}
	c.doubtState(id) // a read that is under way may have begun before
	c.forgetSession(id)
	return c.store.doRepeated(ctx, "session delete", func(ctx context.Context) error {
		p := c.store.client.Pipeline()
		for _, set := range c.store.keys.sessionSets(got.shares) {
			p.ZRem(ctx, set, id)
		}
		_, err := p.Exec(ctx)
		return err
	})
}

// endSession deletes the stored data of a session, and tells all replicas.
func (c *Sessions) endSession(ctx context.Context, id string) error {
	a := &argv{}
	a.add(id, c.store.keys.sessionEvents())
	return c.store.doRepeated(ctx, "session end", func(ctx context.Context) error {
		_, err := sessionEndScript.runOn(ctx, c.store.client, c.store.keys.ofSession(id), a)
		return err
	})
}

// forgetSession drops a session from the cache only. It returns its state, and whether it was known.
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

// Signal sends a signal of one line to the replicas that know a session. They hear it at once, or when their
// connection to Redis is back, or at their next look; the store keeps it for signalTime. The token reaches
// only those who hear it at once, and is never stored.
func (c *Sessions) Signal(ctx context.Context, id, text, token string) error {
	a := &argv{}
	a.add(id, rand.Text(), text, millis(signalTime)) // a name of its own: the same text may be sent again
	a.addInt(signalMax)
	a.add(c.store.keys.sessionEvents(), token)
	return c.store.doRepeated(ctx, "session signal", func(ctx context.Context) error {
		_, err := sessionSignalScript.runOn(ctx, c.store.client, []string{c.store.keys.signals(id), changesOf(c.store.keys, id)}, a)
		return err
	})
}

// tellSignals hands on those signals of a session that are new here. A signal whose event is on its way
// waits: it comes with its token then, or at the next tick without it. ahead is how far the clock here is
// before that of the store, plus the time that the answer of the store took. So a signal never seems older
// than it is, and the cancellation of a request that has begun is never taken for that of an earlier request.
func (c *Sessions) tellSignals(id string, signals []string, ahead time.Duration) {
	var fresh []string
	c.mu.Lock()
	if k := c.known[id]; k != nil {
		k.awaits = false
		listed := make(map[string]bool, len(signals))
		for _, w := range signals {
			switch {
			case k.told[w]:
			case time.Since(signalTimeOf(w, ahead)) < eventTime:
				k.awaits = true
				continue
			default:
				fresh = append(fresh, w)
			}
			listed[w] = true
		}
		k.told = listed
	}
	on := c.signal
	c.mu.Unlock()
	for _, signal := range fresh {
		_, text, _ := strings.Cut(signal, " ")
		on(id, text, "", signalTimeOf(signal, ahead))
	}
}

// eventTime is how long the event of a signal is waited for.
const eventTime = time.Second

// signalTimeOf is when a signal was sent, by the clock here.
func signalTimeOf(signal string, ahead time.Duration) time.Time {
	name, _, _ := strings.Cut(signal, " ")
	_, ms, _ := strings.Cut(name, "@")
	left, _ := strconv.ParseInt(ms, 10, 64)
	at := time.UnixMilli(left + 1).Add(ahead) // the store drops fractions of a ms
	if now := time.Now(); now.Before(at) {
		return now
	}
	return at
}

// tellNew hands on signals that came with their event: they were sent just now.
func (c *Sessions) tellNew(id string, signals []string) {
	var fresh []string
	c.mu.Lock()
	if k := c.known[id]; k != nil {
		if k.told == nil || len(k.told) > 2*signalMax {
			k.told = make(map[string]bool) // if one is then repeated, each request knows that it is older
		}
		for _, signal := range signals {
			name, text, _ := strings.Cut(signal, " ")
			name, _, _ = strings.Cut(name, signalToken)
			if w := name + " " + text; !k.told[w] { // as the list has it
				k.told[w], fresh = true, append(fresh, signal)
			}
		}
	}
	on := c.signal
	c.mu.Unlock()
	for _, signal := range fresh {
		name, text, _ := strings.Cut(signal, " ")
		_, token, _ := strings.Cut(name, signalToken)
		on(id, text, token, time.Now())
	}
}
