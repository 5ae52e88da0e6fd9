package wiretest

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/redisstore"
	"taskgate/shim/node"
)

// Patience is how long a real server, client or socket may take before a test gives up. It is
// not how long that should take: a machine may be busy with other things.
const Patience = 45 * time.Second

// Await receives one value, or gives up.
func Await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(Patience):
		t.Fatalf("timed out: %s", what)
		panic("unreachable")
	}
}

// Wait lets time of a bubble go by, and everything that it wakes come to rest.
func Wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// OpenSessions keeps at most limit sessions, each until it has been idle for the given
// time, in a store of their own that counts time by the clock of the test.
func OpenSessions(t testing.TB, limit int, idle time.Duration) *redisstore.Sessions {
	t.Helper()
	store, err := redisstore.Open(t.Context(), "embedded",
		redisstore.Options{ClockTTL: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store.Sessions(node.NewHeart(store, "holder", time.Minute, slog.New(slog.DiscardHandler)), limit, idle)
}

// Must returns a result that comes without an error, and ends the test with one.
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Check fails the test if something went wrong.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
