package redisstore

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"taskgate/gateway/auth"
	"taskgate/gateway/upstream"
	"taskgate/shim/node"
)

var (
	_ upstream.Sessions = (*UpstreamSessions)(nil)
	_ auth.Refusals     = (*Store)(nil)
)

func TestUpstreamSessions(t *testing.T) {
	t.Parallel()
	for name, open := range everyStore(t) {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			testUpstreamSessions(t, store().(*Store).UpstreamSessions("up"), store().(*Store).UpstreamSessions("up"))
			testUpstreamEnds(t, store().(*Store).UpstreamSessions("up"), store().(*Store).UpstreamSessions("up"))
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
		if got, err := u.End(ctx, "k", "", false, idle); string(got) != want || err != nil {
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
		state, err := b.End(ctx, "k", "", false, 10*time.Millisecond)
		return string(state) == "two" && err == nil
	})
	if _, rev, err := b.Load(ctx, "k"); rev != 0 || err != nil {
		t.Errorf("left: %d %v", rev, err)
	}
}

// testUpstreamEnds: a session that its client has ended is over once nobody else uses it, and Sweep finds those that all
// have left.
func testUpstreamEnds(t *testing.T, a, b *UpstreamSessions) {
	ctx := t.Context()
	a.firstLook, b.firstLook = 0, 0
	make := func(key string) {
		t.Helper()
		rev, err := a.Swap(ctx, key, 0, []byte("state of "+key))
		if rev == 0 || err != nil {
			t.Fatalf("swap: %d %v", rev, err)
		}
	}
	use := func(u *UpstreamSessions, by string, uses, want bool) {
		t.Helper()
		over, err := u.Use(ctx, "used", by, uses)
		must(t, err)
		same(t, want, over)
	}
	end := func(by, want string) {
		t.Helper()
		state, err := b.End(ctx, "used", by, true, 0)
		must(t, err)
		same(t, want, string(state))
	}
	make("used")
	use(a, "a", true, false)
	use(b, "b", true, false)
	end("b", "")
	use(b, "b", false, true)
	use(a, "a", true, true)
	end("b", "")
	use(a, "a", false, true)
	end("a", "state of used")
	use(a, "a", true, false)
	make("left")
	make("young")
	swept := func(u *UpstreamSessions, idle time.Duration, want ...string) {
		t.Helper()
		states, err := u.Sweep(ctx, idle)
		must(t, err)
		got := []string{}
		for _, state := range states {
			got = append(got, string(state))
		}
		slices.Sort(got)
		same(t, append([]string{}, want...), got)
	}
	swept(a, time.Minute)
	swept(b, 0) // both are looked at in a minute
	_, _, err := a.findDue(ctx, 0, []string{"left", "0"}, nil)
	must(t, err)
	swept(b, 0, "state of left")
	_, _, err = a.findDue(ctx, 0, []string{"left", "0", "young", "0"}, nil)
	must(t, err)
	swept(a, 0, "state of young")
	_, _, err = a.findDue(ctx, 0, []string{"young", "0"}, nil)
	must(t, err)
	swept(a, 0)
	named, err := a.store.client.ZRange(ctx, a.store.keys.due("up"), 0, -1).Result()
	must(t, err)
	same(t, []string{"used", "k"}, named) // which are due later
}
