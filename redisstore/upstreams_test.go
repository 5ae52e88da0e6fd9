package redisstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/upstream"
	"taskgate/internal/redistest"
	"taskgate/shim/node"
	"taskgate/shim/shimtest"
)

var (
	_ upstream.Sessions = (*UpstreamSessions)(nil)
	_ auth.Refusals     = (*Store)(nil)
)

func TestUpstreamSessions(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]shimtest.OpenStore{
		"file": inFolders(t), "redis": over(redistest.Start(t).URL()),
		"cluster": over(redistest.ClusterURL(redistest.Cluster(t, 3))),
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			testUpstreamSessions(t, store().(*Store).UpstreamSessions("up"), store().(*Store).UpstreamSessions("up"))
			testTold(t, store().(*Store).UpstreamSessions("up"), store().(*Store).UpstreamSessions("up"))
			testWhoIsGone(t, store().(*Store))
			testRefusals(t, store().(*Store), store().(*Store))
		})
	}
}

func testWhoIsGone(t *testing.T, s *Store) {
	ctx, stop := context.WithCancel(t.Context())
	heart := node.NewHeart(s, "asks", 300*time.Millisecond, s.log)
	sessions := s.Sessions(heart, 10, time.Hour)
	isGone := func() bool {
		gone, err := sessions.isReplicaGone(t.Context(), "r")
		must(t, err)
		return gone
	}
	same(t, true, isGone())
	must(t, s.Beat(t.Context(), "r", time.Millisecond))
	same(t, false, isGone()) // this replica does not beat
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		heart.Run(ctx)
	}()
	defer func() {
		stop()
		<-beating
	}()
	eventually(t, "it is gone", isGone)
	must(t, s.Beat(t.Context(), "r", time.Minute))
	same(t, false, isGone())
	must(t, s.Beat(t.Context(), "r", 0)) // it still ends its streams
	same(t, false, isGone())
}

// testTold: what one replica tells, each of those that hear gets once and in order, as it is.
func testTold(t *testing.T, a, b *UpstreamSessions) {
	ctx, stop := context.WithCancel(t.Context())
	heard, done := make(chan string, 200), make(chan struct{})
	go func() {
		defer close(done)
		b.Hear(ctx, func(key string, message []byte) { heard <- key + ": " + string(message) })
	}()
	eventually(t, "it is heard", func() bool {
		must(t, a.Tell(ctx, "k", []byte("first")))
		return len(heard) > 0
	})
	must(t, a.Tell(ctx, "k", []byte("last")))
	for receive(t, heard, "the last one") != "k: last" {
	}
	for i := range 100 {
		must(t, a.Tell(ctx, "k", fmt.Appendf(nil, `{"n": %d, "text": "a # b -1 token"}`, i)))
	}
	for i := range 100 {
		same(t, fmt.Sprintf(`k: {"n": %d, "text": "a # b -1 token"}`, i), receive(t, heard, "a message"))
	}
	stop()
	receive(t, done, "the end")
}

// testRefusals: a token that one replica says is refused is refused at each, until one says that it is taken, or for
// as long as was said.
func testRefusals(t *testing.T, a, b auth.Refusals) {
	refused := func(want bool) {
		t.Helper()
		got, err := b.IsRefused(t.Context(), "up:token")
		must(t, err)
		same(t, want, got)
	}
	refused(false)
	must(t, a.SetRefused(t.Context(), "up:token", time.Minute))
	refused(true)
	must(t, a.SetRefused(t.Context(), "up:token", 0))
	refused(false)
	must(t, a.SetRefused(t.Context(), "up:token", time.Millisecond))
	eventually(t, "it is over", func() bool {
		got, err := b.IsRefused(t.Context(), "up:token")
		must(t, err)
		return !got
	})
}

func testUpstreamSessions(t *testing.T, a, b *UpstreamSessions) {
	ctx := context.Background()
	swap := func(u *UpstreamSessions, rev int64, state string, want bool) int64 {
		t.Helper()
		got, err := u.Swap(ctx, "k", rev, []byte(state))
		if (got != 0) != want || got != 0 && got == rev || err != nil {
			t.Errorf("swap: %d %v, want %t", got, err, want)
		}
		return got
	}
	end := func(u *UpstreamSessions, idle time.Duration, want string) {
		t.Helper()
		if got, err := u.End(ctx, "k", idle); string(got) != want || err != nil {
			t.Errorf("end: %q %v, want %q", got, err, want)
		}
	}
	one, err := a.TakeNumber(ctx)
	must(t, err)
	next, err := b.TakeNumber(ctx)
	must(t, err)
	if one != 1 || next != 2 {
		t.Errorf("numbers %d and %d", one, next)
	}
	end(a, 0, "") // of nothing
	swap(a, 1, "early", false)
	one = swap(a, 0, "one", true)
	swap(b, 0, "again", false)
	two := swap(b, one, "two", true)
	if state, rev, err := a.Load(ctx, "k"); string(state) != "two" || rev != two || err != nil {
		t.Errorf("load: %q %d %v, want %d", state, rev, err, two)
	}
	end(b, time.Minute, "") // a has just used it
	// The clock of a store in the process runs late under load.
	eventually(t, "b ends what nobody has used for a while", func() bool {
		state, err := b.End(ctx, "k", 10*time.Millisecond)
		return string(state) == "two" && err == nil
	})
	if _, rev, err := b.Load(ctx, "k"); rev != 0 || err != nil {
		t.Errorf("left: %d %v", rev, err)
	}
}
