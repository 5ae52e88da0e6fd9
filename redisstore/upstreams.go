package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// upstreamTTL is how long an unused upstream session is remembered. Client sessions that live so
// long use it sooner.
const upstreamTTL = 7 * 24 * time.Hour

const (
	// useCounts is how long the note of a use counts: longer than the minute after which it is repeated.
	useCounts = 90 * time.Second
	// dueAgain is when a session is looked at again whose look has failed, and sweepRounds bounds one sweep.
	dueAgain    = time.Minute
	sweepRounds = 10
)

// UpstreamSessions keeps the state that replicas share of the sessions with one upstream, each
// under the id of its client session.
type UpstreamSessions struct {
	store     *Store
	name      string
	firstLook time.Duration // after which a new session is looked at by Sweep
}

// UpstreamSessions returns those with the upstream of this name.
func (s *Store) UpstreamSessions(name string) *UpstreamSessions {
	return &UpstreamSessions{store: s, name: name, firstLook: 5 * time.Minute}
}

// Load returns the state under a key and its revision; revision 0 means that there is none. It
// counts as a use.
func (u *UpstreamSessions) Load(ctx context.Context, key string) ([]byte, int64, error) {
	got, err := u.store.fetchState(ctx, u.key(key), upstreamTTL)
	return got.state, got.rev, err
}

// Swap stores a state if the revision still is rev, and returns the new revision; 0 if it has moved
// on. With rev 0 it stores the first state.
func (u *UpstreamSessions) Swap(ctx context.Context, key string, rev int64, state []byte) (int64, error) {
	if rev == 0 { // the set knows each session that there is
		if _, _, err := u.findDue(ctx, 0, []string{key, millis(u.firstLook)}, nil); err != nil {
			return 0, err
		}
	}
	return u.store.swapState(ctx, swap{keys: []string{u.key(key)}, id: key, stored: stored{state: state, rev: rev}, ttl: upstreamTTL})
}

// Use notes that a client of the upstream uses a session, or uses it no more. It reports whether the client of the session
// has ended it.
func (u *UpstreamSessions) Use(ctx context.Context, key, by string, uses bool) (over bool, err error) {
	a := &argv{}
	a.add(millis(upstreamTTL), by)
	a.addFlag(uses)
	err = u.store.doRepeated(ctx, "upstream use", func(ctx context.Context) error {
		v, err := upstreamUseScript.runOn(ctx, u.store.client, []string{u.key(key)}, a)
		over = err == nil && v[0] == codeOK && v[1] != ""
		return err
	})
	return over, err
}

// End removes and returns the state of a session that has been unused on all replicas for idle; nil if there is none, or
// it is in use. With over its client has ended it: then it is also in use where another client of the upstream has noted so
// within useCounts, and is looked at again by Sweep. A repeat after a lost reply finds none: the server then ends the
// session by itself.
func (u *UpstreamSessions) End(ctx context.Context, key, by string, over bool, idle time.Duration) ([]byte, error) {
	state, wait, err := u.endSession(ctx, key, by, over, idle)
	if err == nil && over && wait > 0 {
		_, _, err = u.findDue(ctx, 0, []string{key, millis(wait)}, nil)
	}
	return state, err
}

// endSession is End. It returns in what time the session may be over, if it is in use.
func (u *UpstreamSessions) endSession(ctx context.Context, key, by string, over bool, idle time.Duration) (state []byte, wait time.Duration, err error) {
	a := &argv{}
	a.add(millis(upstreamTTL), millis(idle), by)
	a.addFlag(over)
	a.add(millis(useCounts))
	err = u.store.doRepeated(ctx, "upstream session", func(ctx context.Context) error {
		v, err := upstreamEndScript.runOn(ctx, u.store.client, []string{u.key(key)}, a)
		if err == nil && v[0] == codeOK {
			state = []byte(v[1])
		}
		if err == nil && v[0] == codeHeld {
			ms, _ := strconv.ParseInt(v[1], 10, 64)
			wait = time.Duration(ms) * time.Millisecond
		}
		return err
	})
	return state, wait, err
}

// Sweep removes sessions that have been unused on all replicas for idle, and those that their clients have ended and nobody
// has used for useCounts. It returns their states, also with an error.
func (u *UpstreamSessions) Sweep(ctx context.Context, idle time.Duration) (ended [][]byte, err error) {
	var look, gone []string
	for range sweepRounds {
		given, found, err := u.findDue(ctx, sweepMax, look, gone)
		if err != nil {
			return ended, err
		}
		look, gone = nil, nil
		for _, key := range found {
			state, wait, err := u.endSession(ctx, key, "", false, idle)
			switch {
			case err != nil:
				return ended, err // they are due again
			case wait > 0:
				look = append(look, key, millis(wait))
			default:
				gone = append(gone, key, given)
			}
			if state != nil {
				ended = append(ended, state)
			}
		}
		if len(found) == 0 {
			break
		}
	}
	return ended, nil
}

// findDue says which sessions are to be looked at, and in how many ms, and which are gone, and since what time they were
// due again. It returns those that are due, and when they are due again.
func (u *UpstreamSessions) findDue(ctx context.Context, most int64, look, gone []string) (given string, found []string, err error) {
	a := &argv{}
	a.addInt(most)
	a.add(millis(dueAgain), millis(2*upstreamTTL))
	addList(a, look)
	addList(a, gone)
	err = u.store.doRepeated(ctx, "upstream sweep", func(ctx context.Context) error {
		v, err := upstreamDueScript.runOn(ctx, u.store.client, []string{u.store.keys.due(u.name)}, a)
		if err == nil {
			given, found = v[1], v[2:]
		}
		return err
	})
	return given, found, err
}

// TakeNumber returns a number, from 1 on, that no other call gets with this upstream. It counts anew only if Redis has lost
// its data.
func (u *UpstreamSessions) TakeNumber(ctx context.Context) (n int64, err error) {
	err = u.store.doRepeated(ctx, "number", func(ctx context.Context) error {
		n, err = u.store.client.HIncrBy(ctx, u.store.keys.numbers(), u.name, 1).Result()
		return err
	})
	return n, err
}

func (u *UpstreamSessions) key(key string) string { return u.store.keys.upstream(u.name, key) }

// Tell passes a message of one line to all replicas that Hear. The message is not stored.
func (u *UpstreamSessions) Tell(ctx context.Context, key string, message []byte) error {
	publish := redis.NewIntCmd(ctx, "publish", u.store.keys.told(u.name), fmt.Sprintf("%s %d %s%s", key, signalSent, withToken, message))
	publish.SetFirstKeyPos(1) // in a cluster always at the same node, which keeps the order
	return u.store.client.Process(ctx, publish)
}

// Hear calls hear for each message until ctx ends. Messages that come faster than hear takes them
// are lost.
func (u *UpstreamSessions) Hear(ctx context.Context, hear func(key string, message []byte)) {
	for e, err := range u.store.hub.watchChannels(ctx, []string{u.store.keys.told(u.name)}) {
		if err != nil {
			return // the store is closed
		}
		if e.Token == "" {
			continue
		}
		for message := range strings.SplitSeq(e.Token, signalsEnd) {
			hear(string(e.ID), []byte(message))
		}
	}
}

// SetRefused implements auth.Refusals.
func (s *Store) SetRefused(ctx context.Context, token string, keep time.Duration) error {
	return s.doRepeated(ctx, "token refused", func(ctx context.Context) error {
		if keep <= 0 {
			return s.client.Del(ctx, s.keys.refusedToken(token)).Err()
		}
		return s.client.Set(ctx, s.keys.refusedToken(token), "", keep).Err()
	})
}

// IsRefused implements auth.Refusals.
func (s *Store) IsRefused(ctx context.Context, token string) (refused bool, err error) {
	err = s.doRepeated(ctx, "token refused", func(ctx context.Context) error {
		n, err := s.client.Exists(ctx, s.keys.refusedToken(token)).Result()
		refused = n > 0
		return err
	})
	return refused, err
}
