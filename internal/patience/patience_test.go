package patience

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// hang uses the store until the patience is over, and returns how long that took.
func hang(t *testing.T, ctx context.Context) time.Duration {
	t.Helper()
	begin := time.Now()
	use, done := Use(ctx)
	defer done(false)
	<-use.Done()
	if cause := context.Cause(use); !errors.Is(cause, ErrOver) {
		t.Errorf("the use ended with %v", cause)
	}
	return time.Since(begin)
}

// use uses the store for so long.
func use(ctx context.Context, d time.Duration) {
	_, done := Use(ctx)
	defer done(true)
	<-time.After(d)
}

// All uses of a request wait together for no longer than its patience.
func TestUsesShareIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := With(t.Context(), 3*time.Second)
		use(ctx, time.Second)
		if got := hang(t, ctx); got != 2*time.Second {
			t.Errorf("the second use hung for %v", got)
		}
		if got := hang(t, ctx); got != 0 {
			t.Errorf("the third use hung for %v", got)
		}
	})
}

// Uses at the same time count once, and end together.
func TestUsesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := With(t.Context(), 3*time.Second)
		go use(ctx, 1500*time.Millisecond)
		synctest.Wait()
		<-time.After(time.Second)
		if got := hang(t, ctx); got != 2*time.Second {
			t.Errorf("it hung for %v", got)
		}
	})
}

// A request that does something else regains its patience, and no more than that.
func TestItComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := With(t.Context(), 3*time.Second)
		hang(t, ctx)
		<-time.After(time.Second)
		if got := hang(t, ctx); got != time.Second {
			t.Errorf("after a second it hung for %v", got)
		}
		<-time.After(time.Hour)
		if got := hang(t, ctx); got != 3*time.Second {
			t.Errorf("after an hour it hung for %v", got)
		}
	})
}

// A use within a use is the same one, and what has no patience is not bounded.
func TestWhoWaits(t *testing.T) {
	ctx := With(t.Context(), time.Hour)
	outer, done := Use(ctx)
	defer done(false)
	inner, done := Use(Or(outer, time.Second))
	defer done(false)
	a, _ := outer.Deadline()
	if b, _ := inner.Deadline(); !a.Equal(b) || !Waits(inner) {
		t.Errorf("the use within ends at %v, the other one at %v", b, a)
	}
	for name, c := range map[string]context.Context{"none": t.Context(), "taken away": Without(ctx), "taken from a use": Without(outer)} {
		free, done := Use(c)
		done(false)
		if Waits(free) {
			t.Errorf("%s: somebody waits", name)
		}
	}
	own, done := Use(Or(t.Context(), time.Hour))
	defer done(false)
	if _, bounded := own.Deadline(); !bounded {
		t.Error("Or gave no patience")
	}
}

// Uses that overlap without a pause, and are answered, use nothing up.
func TestUsesThatOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := With(t.Context(), 3*time.Second)
		for range 20 {
			go use(ctx, 1500*time.Millisecond)
			<-time.After(time.Second)
		}
		synctest.Wait()
		if got := hang(t, ctx); got < 2*time.Second {
			t.Errorf("one more use hung for %v only", got)
		}
	})
}

// Uses that overlap, and of which one fails a moment before its time is over, wait no longer
// for that: the failure of a connection may come before the end of the context.
func TestUsesThatFailTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := With(t.Context(), 3*time.Second)
		_, first := Use(ctx)
		_, second := Use(ctx)
		<-time.After(3*time.Second - time.Microsecond)
		first(false)
		if got := hang(t, ctx); got > time.Millisecond {
			t.Errorf("one more use hung for %v", got)
		}
		second(false)
	})
}
