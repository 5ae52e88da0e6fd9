package redisstore

import (
	"context"
	"time"
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
	got, err := u.store.state(ctx, u.key(key), upstreamTTL)
	return got.state, got.rev, err
}

// Swap stores a state where the revision still is rev, and returns the new one; 0 if
// it has moved on. With rev 0 there must be none yet.
func (u *UpstreamSessions) Swap(ctx context.Context, key string, rev int64, state []byte) (int64, error) {
	return u.store.swap(ctx, swap{key: u.key(key), id: key, stored: stored{state: state, rev: rev}, ttl: upstreamTTL})
}

// End removes the state of a session that no replica has used for so long, and returns it; nil
// if there is none. A repeat after a lost reply finds nothing: the session is then left for the
// server to end.
func (u *UpstreamSessions) End(ctx context.Context, key string, idle time.Duration) (state []byte, err error) {
	a := &argv{}
	a.add(millis(upstreamTTL), millis(idle))
	err = u.store.do(ctx, "upstream session", func(ctx context.Context) error {
		v, err := upstreamEndScript.run(ctx, u.store.client, []string{u.key(key)}, a)
		if err == nil && v[0] == codeOK {
			state = []byte(v[1])
		}
		return err
	})
	return state, err
}

func (u *UpstreamSessions) key(key string) string { return u.store.keys.upstream(u.name, key) }
