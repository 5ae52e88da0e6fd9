package redisstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"taskgate/gateway"
	"taskgate/gateway/gatewaytest"
	"taskgate/internal/redistest"
	"taskgate/shim"
	"taskgate/shim/shimtest"
)

var _ gateway.Sessions = (*Sessions)(nil)

// sessionsOver opens two replicas over one database.
func sessionsOver(open shimtest.OpenStore) gatewaytest.OpenSessions {
	return func(t *testing.T, limit int, idle time.Duration) []gateway.Sessions {
		store := open(t)
		a, b := store().(*Store), store().(*Store)
		return []gateway.Sessions{a.Sessions(limit, idle), b.Sessions(limit, idle)}
	}
}

func TestSessionsEmbedded(t *testing.T) {
	t.Parallel()
	gatewaytest.Sessions(t, sessionsOver(inProcess))
}

func TestSessionsRedis(t *testing.T) {
	t.Parallel()
	gatewaytest.Sessions(t, sessionsOver(over(redistest.Start(t).URL())))
}

func TestSessionsCluster(t *testing.T) {
	t.Parallel()
	gatewaytest.Sessions(t, sessionsOver(over(redistest.ClusterURL(redistest.Cluster(t, 3)))))
}

// An outage ends no session that is known, and says of no other that it is gone.
func TestSessionsOutage(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	o := testOptions()
	o.RetryFor = 10 * time.Millisecond
	store := openTest(t, redis.URL(), o)
	s := store.Sessions(10, time.Hour)
	ctx := context.Background()
	for _, id := range []string{"a", "b"} {
		if _, err := s.Put(ctx, id, 0, []byte("state")); err != nil {
			t.Fatal(err)
		}
	}
	s.forget("b")
	redis.Kill()
	s.doubt("a") // what was read a moment ago would do anyway
	if state, rev, err := s.Get(ctx, "a"); err != nil || rev != 1 || string(state) != "state" {
		t.Errorf("known: %q %d %v", state, rev, err)
	}
	if _, _, err := s.Get(ctx, "b"); !errors.Is(err, shim.ErrUnavailable) {
		t.Errorf("not known: %v", err)
	}
	if _, err := s.Put(ctx, "a", 1, nil); !errors.Is(err, shim.ErrUnavailable) {
		t.Errorf("change: %v", err)
	}
	redis.Restart()
	usable(t, store)
	if _, rev, err := s.Get(ctx, "b"); err != nil || rev != 1 {
		t.Errorf("afterwards: %d %v", rev, err)
	}
}

// A lost reply does not make a repeat fail.
func TestSessionsRepeat(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr)
	s := openTest(t, proxy.URL(), testOptions()).Sessions(10, time.Hour)
	ctx := context.Background()
	proxy.Next(redistest.DropReply, "evalsha")
	if rev, err := s.Put(ctx, "a", 0, []byte("one")); rev != 1 || err != nil {
		t.Errorf("made: %d %v", rev, err)
	}
	proxy.Next(redistest.DropReply, "evalsha")
	if rev, err := s.Put(ctx, "a", 1, []byte("two")); rev != 2 || err != nil {
		t.Errorf("changed: %d %v", rev, err)
	}
	proxy.Next(redistest.DropReply, "evalsha")
	if err := s.Delete(ctx, "a"); err != nil {
		t.Error(err)
	}
}

// Nothing of sessions stays behind, and everything is under the prefix.
func TestSessionsKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := testOptions()
	s := openTest(t, server.URL(), o).Sessions(10, time.Hour)
	ctx := context.Background()
	if _, err := s.Put(ctx, "a", 0, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := s.Signal(ctx, "a", "word"); err != nil {
		t.Fatal(err)
	}
	all := server.Keys("*")
	if len(all) != 3 {
		t.Errorf("keys %v", all)
	}
	for _, key := range all {
		if !strings.HasPrefix(key, o.Prefix+":") {
			t.Errorf("key %s", key)
		}
	}
	if err := s.Delete(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if left := server.Keys("*"); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}
