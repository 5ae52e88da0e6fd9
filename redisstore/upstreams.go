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
	store         *Store
	name, replica string
}

// UpstreamSessions are those with the upstream of this name, as this replica uses
// them.
func (s *Store) UpstreamSessions(name, replica string) *UpstreamSessions {
	return &UpstreamSessions{store: s, name: name, replica: replica}
}

// Load returns the state under a key and its revision; 0 says there is none.
func (u *UpstreamSessions) Load(ctx context.Context, key string) ([]byte, int64, error) {
	got, err := u.store.state(ctx, u.key(key), upstreamTTL)
	return got.state, got.rev, err
}

// Swap stores a state where the revision still is rev, and returns the new one; 0 if
// it has moved on. With rev 0 there must be none yet.
func (u *UpstreamSessions) Swap(ctx context.Context, key string, rev int64, state []byte) (int64, error) {
	return u.store.swap(ctx, swap{key: u.key(key), id: key, stored: stored{state: state, rev: rev}, ttl: upstreamTTL})
}

// Hold says that this replica needs the session for so long; 0 lets go of it.
func (u *UpstreamSessions) Hold(ctx context.Context, key string, d time.Duration) error {
	a := &argv{}
	a.add(u.replica, millis(d), millis(upstreamTTL))
	_, err := u.run(ctx, upstreamHoldScript, key, a)
	return err
}

// End says, if over is set, that nobody will begin anything in the session any more.
// Once that was said, and no other replica holds it, the state is removed and
// returned to whoever asked; nil otherwise. A repeat after a lost reply finds nothing:
// the session is then left for the server to end.
func (u *UpstreamSessions) End(ctx context.Context, key string, over bool) ([]byte, error) {
	a := &argv{}
	a.add(u.replica)
	a.flag(over)
	v, err := u.run(ctx, upstreamEndScript, key, a)
	if err != nil || v[0] != codeOK {
		return nil, err
	}
	return []byte(v[1]), nil
}

func (u *UpstreamSessions) key(key string) string { return u.store.keys.upstream(u.name, key) }

func (u *UpstreamSessions) run(ctx context.Context, sc *script, key string, a *argv) (reply []string, err error) {
	err = u.store.do(ctx, "upstream session", func(ctx context.Context) (err error) {
		reply, err = sc.run(ctx, u.store.client, []string{u.key(key)}, a)
		return err
	})
	return reply, err
}
