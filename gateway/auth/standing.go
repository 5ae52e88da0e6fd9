package auth

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Refusals keep for all replicas which tokens their servers have refused with 401.
type Refusals interface {
	// SetRefused keeps for a time that the server refuses a token; a time of 0 says that the server takes it.
	SetRefused(ctx context.Context, token string, keep time.Duration) error
	// IsRefused reports whether a replica has said that the server refuses a token.
	IsRefused(ctx context.Context, token string) (bool, error)
}

const (
	// refusalFresh is how long an answer of the other replicas about a token is believed, and askAgain is the pause
	// after a failure to get one.
	refusalFresh, askAgain = 5 * time.Second, time.Second
	// refusalKept is how long a refusal is kept if the token has no end.
	refusalKept = 24 * time.Hour
	// tellTime bounds telling the other replicas, and askTime asking them: the caller waits. After that the
	// earlier answer counts.
	tellTime, askTime = time.Second, 250 * time.Millisecond
)

// standing is what the server says of a token. All requests with the token share it.
type standing struct {
	refused   atomic.Bool // here, when it was last shown
	elsewhere atomic.Bool // at another replica
	known     atomic.Bool // it is verified, or the server has taken it: only such tokens are in the store

	mu  sync.Mutex // held while the other replicas are asked
	ask time.Time  // when to ask them again
}

func newStanding(known bool) *standing {
	s := &standing{}
	s.known.Store(known)
	return s
}

func (s *standing) isRefused() bool { return s.refused.Load() || s.elsewhere.Load() }

// noteVerdict takes what the server says now, and reports whether the other replicas are to hear of it.
func (s *standing) noteVerdict(taken bool) (tell bool) {
	if !taken {
		s.refused.Store(true)
		return s.known.Load()
	}
	s.known.Store(true)
	here, elsewhere := s.refused.Swap(false), s.elsewhere.Swap(false)
	return here || elsewhere
}

// tellReplicas tells the other replicas what the server says of a token.
func (p *tokenCache) tellReplicas(of grade, taken bool) {
	if p.refusals == nil {
		return
	}
	keep := refusalKept
	switch {
	case taken:
		keep = 0
	case !of.Expires.IsZero():
		if keep = min(keep, time.Until(of.Expires)); keep <= 0 {
			return // it has expired
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), tellTime)
	defer stop()
	_ = p.refusals.SetRefused(ctx, p.upstream+":"+of.Hash, keep) // while the store is away, replicas cannot read tasks
}

// askReplicas learns what the server has said of a token at other replicas.
func (p *tokenCache) askReplicas(ctx context.Context, t *shown) {
	if p.refusals == nil || t.authorization == "" {
		return
	}
	s := t.standing
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.ask) {
		return
	}
	s.ask = time.Now().Add(askAgain)
	ctx, stop := context.WithTimeout(ctx, askTime)
	defer stop()
	if refused, err := p.refusals.IsRefused(ctx, p.upstream+":"+t.Hash); err == nil {
		s.elsewhere.Store(refused)
		s.ask = time.Now().Add(refusalFresh)
	}
}
