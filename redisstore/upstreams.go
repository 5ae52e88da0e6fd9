package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// upstreamTTL is how long an unused upstream session is remembered. Client sessions that live so
// long use it sooner.
const upstreamTTL = 7 * 24 * time.Hour

// UpstreamSessions keeps the state that replicas share of the sessions with one upstream, each
// under the id of its client session.
type UpstreamSessions struct {
	store *Store
	name  string
}

// UpstreamSessions returns those with the upstream of this name.
func (s *Store) UpstreamSessions(name string) *UpstreamSessions {
	return &UpstreamSessions{store: s, name: name}
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
	return u.store.swapState(ctx, swap{key: u.key(key), id: key, stored: stored{state: state, rev: rev}, ttl: upstreamTTL})
}

// End removes and returns the state of a session that has been unused on all replicas for idle; nil
// if there is none. A repeat after a lost reply finds none: the server then ends the session by
// itself.
func (u *UpstreamSessions) End(ctx context.Context, key string, idle time.Duration) (state []byte, err error) {
	a := &argv{}
	a.add(millis(upstreamTTL), millis(idle))
	err = u.store.doRepeated(ctx, "upstream session", func(ctx context.Context) error {
		v, err := endIdleScript.runOn(ctx, u.store.client, []string{u.key(key)}, a)
		if err == nil && v[0] == codeOK {
			state = []byte(v[1])
		}
		return err
	})
	return state, err
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
