package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// upstreamTTL is how long an upstream session is remembered that nobody has looked
// at: no client session is expected to be used for so long without.
const upstreamTTL = 7 * 24 * time.Hour

// UpstreamSessions keeps what replicas share of the sessions with one upstream, each
// under the id of the client session it belongs to.
type UpstreamSessions struct {
	store *Store
	name  string
}

// UpstreamSessions are those with the upstream of this name.
func (s *Store) UpstreamSessions(name string) *UpstreamSessions {
	return &UpstreamSessions{store: s, name: name}
}

// Load returns the state under a key and its revision; 0 says there is none. It counts as a use.
func (u *UpstreamSessions) Load(ctx context.Context, key string) ([]byte, int64, error) {
	got, err := u.store.fetchState(ctx, u.key(key), upstreamTTL)
	return got.state, got.rev, err
}

// Swap stores a state where the revision still is rev, and returns the new one; 0 if
// it has moved on. With rev 0 there must be none yet.
func (u *UpstreamSessions) Swap(ctx context.Context, key string, rev int64, state []byte) (int64, error) {
	return u.store.swapState(ctx, swap{key: u.key(key), id: key, stored: stored{state: state, rev: rev}, ttl: upstreamTTL})
}

// End removes the state of a session that no replica has used for so long, and returns it; nil
// if there is none. A repeat after a lost reply finds nothing: the session is then left for the
// server to end.
func (u *UpstreamSessions) End(ctx context.Context, key string, idle time.Duration) (state []byte, err error) {
	a := &argv{}
	a.add(millis(upstreamTTL), millis(idle))
	err = u.store.doRepeated(ctx, "upstream session", func(ctx context.Context) error {
		v, err := upstreamEndScript.runOn(ctx, u.store.client, []string{u.key(key)}, a)
		if err == nil && v[0] == codeOK {
			state = []byte(v[1])
		}
		return err
	})
	return state, err
}

func (u *UpstreamSessions) key(key string) string { return u.store.keys.upstream(u.name, key) }

// Tell passes a message of one line to all who Hear. It is stored nowhere.
func (u *UpstreamSessions) Tell(ctx context.Context, key string, message []byte) error {
	publish := redis.NewIntCmd(ctx, "publish", u.store.keys.told(u.name), fmt.Sprintf("%s %d %s%s", key, signalSent, withToken, message))
	publish.SetFirstKeyPos(1) // in a cluster always at the same node, else they come in any order
	return u.store.client.Process(ctx, publish)
}

// Hear calls hear for each message until ctx ends. What comes faster than hear takes it is lost.
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

// Refusals implements auth.Refusals.
type Refusals struct{ Store *Store }

// SetRefused implements auth.Refusals.
func (r Refusals) SetRefused(ctx context.Context, token string, keep time.Duration) error {
	s := r.Store
	return s.doRepeated(ctx, "token refused", func(ctx context.Context) error {
		if keep <= 0 {
			return s.client.Del(ctx, s.keys.refusedToken(token)).Err()
		}
		return s.client.Set(ctx, s.keys.refusedToken(token), "", keep).Err()
	})
}

// IsRefused implements auth.Refusals.
func (r Refusals) IsRefused(ctx context.Context, token string) (refused bool, err error) {
	s := r.Store
	err = s.doRepeated(ctx, "token refused", func(ctx context.Context) error {
		n, err := s.client.Exists(ctx, s.keys.refusedToken(token)).Result()
		refused = n > 0
		return err
	})
	return refused, err
}
