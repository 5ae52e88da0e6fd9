package redisstore

import (
	"context"
	"testing"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/internal/redistest"
	"taskgate/shim/shimtest"
)

var _ upstream.Sessions = (*UpstreamSessions)(nil)

func TestUpstreamSessions(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]shimtest.OpenStore{
		"embedded": inProcess, "redis": over(redistest.Start(t).URL()),
		"cluster": over(redistest.ClusterURL(redistest.Cluster(t, 3))),
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			testUpstreamSessions(t, store().(*Store).UpstreamSessions("up", "a"), store().(*Store).UpstreamSessions("up", "b"))
		})
	}
}

func testUpstreamSessions(t *testing.T, a, b *UpstreamSessions) {
	ctx := context.Background()
	swap := func(u *UpstreamSessions, rev int64, state string, want int64) {
		t.Helper()
		if got, err := u.Swap(ctx, "k", rev, []byte(state)); got != want || err != nil {
			t.Errorf("swap: %d %v, want %d", got, err, want)
		}
	}
	end := func(u *UpstreamSessions, over bool, want string) {
		t.Helper()
		if got, err := u.End(ctx, "k", over); string(got) != want || err != nil {
			t.Errorf("end: %q %v, want %q", got, err, want)
		}
	}
	hold := func(u *UpstreamSessions, d time.Duration) {
		t.Helper()
		if err := u.Hold(ctx, "k", d); err != nil {
			t.Error(err)
		}
	}
	end(a, true, "")
	hold(a, time.Minute) // of nothing
	swap(a, 1, "early", 0)
	swap(a, 0, "one", 1)
	swap(b, 0, "again", 0)
	swap(b, 1, "two", 2)
	if state, rev, err := a.Load(ctx, "k"); string(state) != "two" || rev != 2 || err != nil {
		t.Errorf("load: %q %d %v", state, rev, err)
	}
	end(a, false, "") // nobody has said that it is over
	hold(a, time.Minute)
	hold(b, time.Millisecond)
	end(b, true, "") // a needs it
	hold(a, 0)
	give, again := time.After(limit), time.NewTicker(time.Millisecond)
	defer again.Stop()
	for done := false; !done; { // b needed it for a moment
		state, err := a.End(ctx, "k", false)
		if err != nil || state != nil && string(state) != "two" {
			t.Fatalf("end: %q %v", state, err)
		}
		done = state != nil
		select {
		case <-again.C:
		case <-give:
			t.Fatal("timed out")
		}
	}
	if _, rev, err := b.Load(ctx, "k"); rev != 0 || err != nil {
		t.Errorf("left: %d %v", rev, err)
	}
}
