package gateway

import (
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"taskgate/redisstore"
)

// openSessions keeps at most limit sessions, each until it has been idle for the given
// time, in a store of their own that counts time by the clock of the test.
func openSessions(t testing.TB, limit int, idle time.Duration) Sessions {
	t.Helper()
	store, err := redisstore.Open(t.Context(), "embedded",
		redisstore.Options{ClockTTL: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store.Sessions(limit, idle)
}

// endings collects the ids of sessions that have ended.
type endings struct {
	mu  sync.Mutex
	ids []string
}

func (e *endings) add(id string) {
	e.mu.Lock()
	e.ids = append(e.ids, id)
	e.mu.Unlock()
}

func (e *endings) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprint(e.ids)
}

func exists(t *testing.T, s Sessions, id string) bool {
	t.Helper()
	_, rev, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return rev != 0
}
