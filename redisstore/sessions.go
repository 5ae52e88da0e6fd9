package redisstore

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

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
	// signalTime and signalMax bound the words that wait to be read.
	signalTime = time.Minute
	signalMax  = 64
)

// Sessions keeps the states of client sessions, for every replica over one Redis.
//
// A session is a hash that Redis lets expire when it has been idle. A sorted set of
// all sessions says how many there are, and which may have ended, so that somebody
// can be told; it is a hint, and the hash is the truth. What was read is kept for a
// moment, and for as long as Redis is away: an outage ends no session.
type Sessions struct {
	store *Store
	max   int
	idle  time.Duration
	tick  time.Duration
	// messages and bytes bound the log of a session; name is that of this replica.
	messages int
	bytes    int64
	name     string

	mu    sync.Mutex
	known map[string]*knownSession
	turn  int64     // counts what was heard of changes
	lived time.Time // when this replica last said that it is alive
	// busy, ended and signal are those of Run.
	busy   func(string) bool
	ended  func(string)
	signal func(id, word string)
}

// knownSession is a session that this replica has used.
type knownSession struct {
	state   []byte
	rev     int64
	read    time.Time // when it was last known to be so; zero: look again
	used    time.Time // when it was last asked for
	touched time.Time // when its expiry, and that of its log, was last put off
	flushed time.Time // when the set of all sessions was last told of a use
	checked time.Time // when its words were last read, or it became known
	told    []string  // words that were told here, as they are stored
}

// Sessions keeps at most limit sessions, each until it has been idle for the given
// time. When there are so many, a new session takes the place of the one that has
// not been used for longest, and is refused only if all were in use in the last
// moments. The bound holds for all replicas together, which should agree on it.
func (s *Store) Sessions(limit int, idle time.Duration) *Sessions {
	return &Sessions{
		store: s, max: limit, idle: idle,
		tick:     min(sessionTick, max(idle/8, 50*time.Millisecond)),
		messages: logMessages, bytes: logBytes, name: rand.Text(),
		known:  map[string]*knownSession{},
		busy:   func(string) bool { return false },
		ended:  func(string) {},
		signal: func(string, string) {},
	}
}

// ttl is how long Redis keeps a session from its last use.
func (c *Sessions) ttl() time.Duration { return c.idle + c.store.opts.slack }

// Get returns the state of a session and its revision; revision 0 says that there is
// none. An error says that it cannot be known just now.
func (c *Sessions) Get(ctx context.Context, id string) ([]byte, int64, error) {
	if len(id) > sessionName {
		return nil, 0, nil
	}
	if state, rev, ok := c.cached(id, false); ok {
		return state, rev, nil
	}
	state, rev, err := c.read(ctx, id, true)
	if err == nil {
		return state, rev, nil
	}
	if state, rev, ok := c.cached(id, true); ok {
		return state, rev, nil
	}
	return nil, 0, err
}

// cached returns a state that was read a moment ago, or, where there is nothing
// better, at any time, and notes the use.
func (c *Sessions) cached(id string, anyAge bool) ([]byte, int64, bool) {
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

// read looks a session up. That puts off its expiry if it is used.
func (c *Sessions) read(ctx context.Context, id string, use bool) (state []byte, rev int64, err error) {
	c.mu.Lock()
	turn := c.turn
	c.mu.Unlock()
	ttl := time.Duration(0)
	if use {
		ttl = c.ttl()
	}
	if state, rev, err = c.store.state(ctx, c.store.keys.session(id), ttl); err != nil {
		return nil, 0, err
	}
	if rev == 0 {
		c.lost(id)
		return nil, 0, nil
	}
	c.learn(id, rev, state, turn, use)
	return state, rev, nil
}

// learn keeps what was read or written, unless something newer is known. What was
// heard since turn may have been about it: then it is kept, but not believed.
func (c *Sessions) learn(id string, rev int64, state []byte, turn int64, used bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.known[id]
	if k == nil {
		if !used {
			return
		}
		k = &knownSession{checked: time.Now()}
		c.known[id] = k
	}
	if rev < k.rev {
		return
	}
	k.state, k.rev, k.read = state, rev, time.Time{}
	if turn == c.turn {
		k.read = time.Now()
	}
	if used {
		k.used = time.Now()
	}
}

// lost forgets a session that is gone, and tells that it has ended if it was known.
func (c *Sessions) lost(id string) {
	c.mu.Lock()
	_, known := c.known[id]
	delete(c.known, id)
	ended := c.ended
	c.mu.Unlock()
	if known {
		ended(id)
	}
}

// doubt makes the next Get look again.
func (c *Sessions) doubt(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn++
	if k := c.known[id]; k != nil {
		k.read = time.Time{}
	}
}

// Put stores the state where the revision still is rev, and returns the new one.
// With rev 0 it makes the session. It returns 0 and changes nothing if the revision
// has moved on, or the session exists already or no longer.
func (c *Sessions) Put(ctx context.Context, id string, rev int64, state []byte) (int64, error) {
	if len(id) > sessionName {
		return 0, nil
	}
	if rev == 0 {
		if err := c.enter(ctx, id); err != nil {
			return 0, err
		}
	}
	c.mu.Lock()
	turn := c.turn
	c.mu.Unlock()
	next, err := c.store.swap(ctx, swap{
		key: c.store.keys.session(id), id: id, rev: rev, state: state, ttl: c.ttl(), channel: c.store.keys.sessionEvents(),
	})
	if next == 0 { // on an error it may have been stored all the same
		c.doubt(id)
		return 0, err
	}
	c.learn(id, next, append([]byte(nil), state...), turn, true)
	return next, nil
}

// swap is a change of a state with a revision.
type swap struct {
	key, id string
	rev     int64
	state   []byte
	ttl     time.Duration
	channel string // where it is to be heard of; "" for nowhere
}

// swap makes a change if the revision is still the one it is based on, and returns
// the next one; 0 if it has moved on.
func (s *Store) swap(ctx context.Context, w swap) (int64, error) {
	a := &argv{}
	a.add(w.id)
	a.addInt(w.rev)
	a.list = append(a.list, w.state)
	a.add(millis(w.ttl), w.channel, rand.Text())
	next := int64(0)
	err := s.do(ctx, "swap", func() error {
		v, err := sessionPutScript.run(ctx, s.client, []string{w.key}, a)
		if err == nil && v[0] == codeOK {
			next = w.rev + 1
		}
		return err
	})
	return next, err
}

// state reads a state and its revision, 0 if there is none. Its expiry is put off if
// ttl is not 0.
func (s *Store) state(ctx context.Context, key string, ttl time.Duration) (state []byte, rev int64, err error) {
	err = s.do(ctx, "state", func() error {
		p := s.client.Pipeline()
		got := p.HMGet(ctx, key, "rev", "state")
		if ttl != 0 {
			p.PExpire(ctx, key, ttl)
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
		state, rev = nil, 0
		if v := got.Val(); v[0] != nil && v[1] != nil {
			rev, _ = strconv.ParseInt(v[0].(string), 10, 64)
			state = []byte(v[1].(string))
		}
		return nil
	})
	return state, rev, err
}

// enter puts a new session among those that exist. Those that make room for it are ended
// first, and taken out of the set after that: whatever fails, or is not heard of, each of
// them is in the set or has ended.
func (c *Sessions) enter(ctx context.Context, id string) error {
	var victims []string
	for {
		a := &argv{}
		a.add(id)
		a.addInt(int64(c.max), (3 * c.tick).Milliseconds())
		addList(a, victims)
		var reply []string
		err := c.store.do(ctx, "session enter", func() (err error) {
			reply, err = sessionEnterScript.run(ctx, c.store.client, []string{c.store.keys.sessions()}, a)
			return err
		})
		switch {
		case err != nil:
			return err
		case reply[0] == codeFull:
			return &shim.BusyError{Limit: "sessions", RetryAfter: time.Second}
		case reply[0] == codeOK:
			return nil
		}
		victims = reply[1:]
		for _, victim := range victims {
			c.forget(victim) // before it is heard of that it ends: that is told once
			if err := c.end(ctx, victim); err != nil {
				return err
			}
			c.onEnded()(victim)
		}
	}
}

// Delete ends a session. It is no error if there is none.
func (c *Sessions) Delete(ctx context.Context, id string) error {
	if len(id) > sessionName {
		return nil
	}
	c.forget(id)
	if err := c.end(ctx, id); err != nil {
		return err
	}
	return c.store.do(ctx, "session delete", func() error {
		return c.store.client.ZRem(ctx, c.store.keys.sessions(), id).Err()
	})
}

// end deletes what is stored of a session, and lets all replicas know.
func (c *Sessions) end(ctx context.Context, id string) error {
	a := &argv{}
	a.add(id, c.store.keys.sessionEvents())
	return c.store.do(ctx, "session end", func() error {
		_, err := sessionEndScript.run(ctx, c.store.client, c.store.keys.ofSession(id), a)
		return err
	})
}

// forget drops a session without a word, and reports whether it was known.
func (c *Sessions) forget(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.known[id]
	delete(c.known, id)
	return known
}

func (c *Sessions) onEnded() func(string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// Signal leaves a word for whoever is busy with a session. It is not kept long: who
// is busy reads it at once, or as soon as its connection to Redis is back, or else at its
// next look.
func (c *Sessions) Signal(ctx context.Context, id, word string) error {
	a := &argv{}
	a.add(id, rand.Text()+" "+word, millis(signalTime)) // a name of its own: the same may be said again
	a.addInt(signalMax)
	a.add(c.store.keys.sessionEvents())
	return c.store.do(ctx, "session signal", func() error {
		_, err := sessionSignalScript.run(ctx, c.store.client, []string{c.store.keys.signals(id)}, a)
		return err
	})
}

// pipelined runs one command per id in one round trip for each hundred, and returns
// whether each answered with something else than zero.
func (c *Sessions) pipelined(ctx context.Context, ids []string, add func(redis.Pipeliner, string) *redis.BoolCmd) ([]bool, error) {
	out := make([]bool, 0, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), 100)
		cmds := make([]*redis.BoolCmd, n)
		err := c.store.do(ctx, "sessions", func() error {
			p := c.store.client.Pipeline()
			for i, id := range ids[:n] {
				cmds[i] = add(p, id)
			}
			_, err := p.Exec(ctx)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, cmd := range cmds {
			out = append(out, cmd.Val())
		}
		ids = ids[n:]
	}
	return out, nil
}
