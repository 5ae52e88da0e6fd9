package redisstore

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"taskgate/shim"
)

// The sets of sessions have a score for each: when it was last used, by what is known. The score of a session that is
// needed until later (a call or a stream of it is open, or it has tasks) is that time. The score of a session without
// any request besides its handshake is less by sessionYoung, so that such sessions come first.

const (
	// restMost is how long a session that nobody uses is sure to be kept where the limit of all is full. After that it
	// makes room for another one of any share.
	restMost = 10 * time.Minute
	// handshakeRest is how long a session without any request besides its handshake goes before all others.
	handshakeRest = time.Minute
	// unseenUse is how long a use of a session at another replica may be unknown here: it is believed for sessionFresh,
	// and a call that is as short as a tick is not noted.
	unseenUse = sessionFresh + sessionTick
	// openTicks is for how many ticks the sets know that a call or a stream of a session is open.
	openTicks = 12
	// clockTolerance is by how much the last use that a session knows may be off.
	clockTolerance = 3 * time.Second
	// usedHere is how much later than a last use that the sets know a use here is certainly another one.
	usedHere = time.Second
	// roomTries bounds how many sessions are asked to make room for one.
	roomTries = 8
	// sessionYoung is more than any time in ms.
	sessionYoung = 1 << 43
)

// share is one that a session counts towards.
type share struct {
	name string // a digest
	most int    // sessions; 0 is any number
}

func namesOf(shares []share) (names []string) {
	for _, s := range shares {
		names = append(names, s.name)
	}
	return names
}

// sharesOf are those of a session, the smallest first.
func (c *Sessions) sharesOf(owner, address string) []share {
	if owner != "" {
		return []share{{digest(owner), shim.OwnerShare(c.max, int(c.perOwner.Load()))}}
	}
	all := shim.StrangersShare(c.max, c.halved.Load())
	if address == "" {
		return []share{{digest(""), all}}
	}
	return []share{{digest("address " + address), shim.AddressShare(all)}, {digest(""), all}}
}

// leaver is a session that has been asked to make room.
type leaver struct {
	id     string
	gone   bool
	young  bool          // it has had no request besides its handshake
	idle   time.Duration // otherwise: since its last use
	shares []string
}

// leavers are sessions that could make room in one share, by the last look at its set. Only a store within the process keeps
// them: it alone knows at once of each use, and sorts a set for each look.
type leavers struct {
	at   time.Time
	left []leaver // the best first
	none bool     // nobody could make room
}

const (
	// leaversLast is how long leavers count: meanwhile others may have become better ones.
	leaversLast = sessionTick
	// noLeaversLast is how long it counts that nobody can make room.
	noLeaversLast = time.Second
	// maxLeavers bounds the shares whose leavers are kept.
	maxLeavers = 1000
)

// looks has what the last looks have found, by share; "" is that of all. It is safe for concurrent use.
type looks struct {
	keeps bool // within the process
	mu    sync.Mutex
	of    map[string]*leavers
}

// wantedOf says of each share, and of all, which sessions the store is to name if it is full.
func (k *looks) wantedOf(shares []share) (words []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range append(namesOf(shares), "") {
		l, since := k.of[name], time.Duration(0)
		if l != nil {
			since = time.Since(l.at)
		}
		switch {
		case !k.keeps:
			words = append(words, "one")
		case l != nil && (len(l.left) > 0 && since < leaversLast || l.none && since < noLeaversLast):
			words = append(words, "none")
		default:
			words = append(words, "many")
		}
	}
	return words
}

// takeBest takes the best session that could make room in a share; it is empty if the store has to be asked. named are those
// that the store has named just now. Without any, those of its last look count. none says that there was nobody.
func (k *looks) takeBest(name string, named []leaver) (best leaver, none bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.of[name]
	if l == nil || len(named) > 0 && (len(l.left) == 0 || time.Since(l.at) >= leaversLast) {
		l = &leavers{at: time.Now(), left: named}
		k.keepLeavers(name, l)
	}
	if len(l.left) == 0 {
		return leaver{}, l.none
	}
	best, l.left = l.left[0], l.left[1:]
	best.idle += time.Since(l.at)
	return best, false
}

// noteNobody notes that nobody can make room in a share.
func (k *looks) noteNobody(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keepLeavers(name, &leavers{at: time.Now(), none: true})
}

// keepLeavers keeps the leavers of a share. k.mu is held.
func (k *looks) keepLeavers(name string, l *leavers) {
	if len(k.of) >= maxLeavers {
		clear(k.of)
	}
	k.of[name] = l
}

// enterSets adds a new session to the sets of sessions. If one of its shares is full, a session of that share makes
// room that has no call, stream or task: one without any request for handshakeRest besides its handshake, or else the
// one that is idle for longest. If the limit of all is full, one makes room that is idle for restMost. If none can, the
// error is a *shim.BusyError. All this takes a bounded number of commands.
func (c *Sessions) enterSets(ctx context.Context, id string, shares []share) error {
	var asked leaver
	full := ""
	for range roomTries {
		reply, err := c.tryEnter(ctx, id, shares, asked)
		if err != nil || reply[0] == codeOK {
			return err
		}
		full = reply[1]
		name := "" // of the full share
		if n, err := strconv.Atoi(full); err == nil {
			name = shares[n-1].name
		}
		if reply[0] == codeFull {
			c.looks.noteNobody(name)
			return refuseSession(full, shares)
		}
		next, none := c.looks.takeBest(name, readLeavers(reply[2:]))
		switch {
		case none, next.id != "" && next.id == asked.id:
			return refuseSession(full, shares)
		case next.id == "":
			asked = leaver{}
			continue
		}
		if asked, err = c.askToLeave(ctx, next); err != nil {
			return err
		}
	}
	return refuseSession(full, shares)
}

// refuseSession is the error of a session for which there is no room. full is the number of the full share, "" for all.
func refuseSession(full string, shares []share) error {
	if full == "1" && shares[0].name != digest("") && len(shares) == 1 {
		return &shim.BusyError{Key: "max_sessions_per_owner", Limit: "sessions of this caller", RetryAfter: time.Second}
	}
	return &shim.BusyError{Key: "max_sessions", Limit: "sessions", RetryAfter: time.Second}
}

// readLeavers reads the sessions that session_enter names.
func readLeavers(words []string) (named []leaver) {
	for ; len(words) >= 3; words = words[3:] {
		unused, _ := strconv.ParseInt(words[2], 10, 64)
		named = append(named, leaver{id: words[0], young: words[1] == "1", idle: time.Duration(unused) * time.Millisecond})
	}
	return named
}

// tryEnter adds a new session if there is room for it, and notes what became of the one that was asked to leave.
func (c *Sessions) tryEnter(ctx context.Context, id string, shares []share, asked leaver) (reply []string, err error) {
	a := &argv{}
	a.add(id)
	a.addInt(int64(c.max), restMost.Milliseconds(), handshakeRest.Milliseconds(), c.life().Milliseconds(), sessionYoung, int64(len(shares)))
	for _, s := range shares {
		a.addInt(int64(s.most))
	}
	a.add(c.looks.wantedOf(shares)...)
	a.add(asked.id, strconv.FormatBool(asked.gone))
	less := int64(0)
	if asked.young {
		less = sessionYoung
	}
	a.addInt(asked.idle.Milliseconds(), less)
	keys := append(c.store.keys.sessionSets(namesOf(shares)), c.store.keys.sessionSets(asked.shares)[1:]...)
	err = c.store.doRepeated(ctx, "session enter", func(ctx context.Context) error {
		reply, err = sessionEnterScript.runOn(ctx, c.store.client, keys, a)
		return err
	})
	return reply, err
}

// askToLeave ends a session that is unused for as long as the sets say. The session itself knows of a use that they
// have yet to hear of: then it stays.
func (c *Sessions) askToLeave(ctx context.Context, asked leaver) (leaver, error) {
	if stays, yes := c.staysHere(asked); yes {
		return stays, nil
	}
	least := asked.idle - clockTolerance
	if !asked.young {
		least = max(least, c.store.unseenUse())
	}
	a := &argv{}
	a.add(asked.id)
	a.addInt(c.ttl().Milliseconds(), least.Milliseconds())
	a.add(c.store.keys.sessionEvents())
	var reply []string
	err := c.store.doRepeated(ctx, "session leave", func(ctx context.Context) (err error) {
		reply, err = sessionLeaveScript.runOn(ctx, c.store.client, c.store.keys.ofSession(asked.id), a)
		return err
	})
	if err != nil {
		return leaver{}, err
	}
	idle, _ := strconv.ParseInt(reply[1], 10, 64)
	asked.gone, asked.idle, asked.shares = reply[0] == codeOK, time.Duration(idle)*time.Millisecond, strings.Fields(reply[2])
	if asked.gone {
		state, _ := c.forgetSession(asked.id)
		c.onEnded()(asked.id, state)
	}
	return asked, nil
}

// staysHere reports whether this replica knows better than the sets that a session is in use, and what it knows.
func (c *Sessions) staysHere(asked leaver) (stays leaver, yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stays.id = asked.id
	if c.busy(asked.id) {
		stays.idle = -openTicks * c.tick // it is needed for as long
		return stays, true
	}
	if k := c.known[asked.id]; k != nil && time.Since(k.used) < asked.idle-usedHere {
		stays.idle, stays.young, stays.shares = time.Since(k.used), !k.begun, k.shares
		return stays, true
	}
	return stays, false
}

// unseenUse is how long a use of a session by another replica may be unknown: a store of one process has no others.
func (s *Store) unseenUse() time.Duration {
	if s.embedded != nil {
		return 0
	}
	return unseenUse
}

// Use notes that a session has had a request besides its handshake, or is needed for a time: from then on it is among
// the last to make room for others. The first one of a session at a replica costs a command, and a failure is
// forgotten.
func (c *Sessions) Use(ctx context.Context, id string, keep time.Duration) {
	c.mu.Lock()
	k := c.known[id]
	noted := k == nil || k.begun && keep == 0
	c.mu.Unlock()
	if noted {
		return
	}
	c.mu.Lock()
	k.begun, k.used = true, time.Now() // before the sets hear of it, so that they hear of a request
	c.mu.Unlock()
	keys, used := c.listUses([]string{id}, keep, false)
	if _, err := c.noteUses(ctx, keys, used, 0); err != nil {
		c.mu.Lock()
		k.begun = false
		c.mu.Unlock()
	}
}
