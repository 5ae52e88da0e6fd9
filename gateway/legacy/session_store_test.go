package legacy_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"taskgate/gateway/legacy"
)

// together are sessions that several gateways of one process use: each is told of all.
type together struct {
	legacy.Sessions
	mu    sync.Mutex
	users []sessionsUser
}

// sessionsUser is what one gateway gives to Run.
type sessionsUser struct {
	busy   func(string) bool
	ended  func(string, []byte)
	signal func(id, text, token string, at time.Time)
}

// Run implements Sessions. The first gateway's run serves all.
func (s *together) Run(ctx context.Context, busy func(string) bool, ended func(string, []byte), signal func(id, text, token string, at time.Time)) error {
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
	}, func(id string, state []byte) {
		for _, u := range s.all() {
			u.ended(id, state)
		}
	}, func(id, text, token string, at time.Time) {
		for _, u := range s.all() {
			u.signal(id, text, token, at)
		}
	})
}

func (s *together) all() []sessionsUser {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.users)
}
