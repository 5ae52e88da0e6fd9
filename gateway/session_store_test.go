package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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

// together are sessions that several gateways of one process use: each is told of all.
type together struct {
	Sessions
	mu    sync.Mutex
	users []sessionsUser
}

// sessionsUser is what one gateway gives to Run.
type sessionsUser struct {
	busy   func(string) bool
	ended  func(string)
	signal func(id, word string)
}

// Run implements Sessions. The first gateway's run serves all.
func (s *together) Run(ctx context.Context, busy func(string) bool, ended func(string), signal func(id, word string)) error {
	s.mu.Lock()
	s.users = append(s.users, sessionsUser{busy, ended, signal})
	first := len(s.users) == 1
	s.mu.Unlock()
	if !first {
		<-ctx.Done()
		return nil
	}
	return s.Sessions.Run(ctx, func(id string) bool {
		return slices.ContainsFunc(s.all(), func(u sessionsUser) bool { return u.busy(id) })
	}, func(id string) {
		for _, u := range s.all() {
			u.ended(id)
		}
	}, func(id, word string) {
		for _, u := range s.all() {
			u.signal(id, word)
		}
	})
}

func (s *together) all() []sessionsUser {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
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
