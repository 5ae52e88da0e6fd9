package auth

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"taskgate/internal/mcp"
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
	known atomic.Bool // it is verified, or the server has taken it for a call: only such tokens are in the store

	mu   sync.Mutex // guards last
	last refusal    // zero once the server takes the token

	judged time.Time // when the server was last asked about the refused token for a request that ends here; mu guards it

	asking sync.Mutex // held while the other replicas are asked
	ask    time.Time  // when to ask them again
}

// refusal is the last 401 for a token.
type refusal struct {
	heard     time.Time
	elsewhere bool      // at another replica
	method    string    // of the refused request; that of a call stays
	kept      time.Time // the other replicas can hear of it until then
}

// answer is what the server says to a request with a token.
type answer struct {
	taken       bool // or refused
	method      string
	sent, heard time.Time
}

// endsRefusal reports whether an answer shows that the server takes the token again. A server may take any token for
// another method, such as a list of tools, and the token that an older request came with.
func (a answer) endsRefusal(r refusal) bool {
	return a.sent.After(r.heard) && (a.method == mcp.MethodToolsCall || a.method == r.method)
}

func newStanding(known bool) *standing {
	s := &standing{}
	s.known.Store(known)
	return s
}

func (s *standing) lastRefusal() refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *standing) isRefused() bool { return s.lastRefusal() != refusal{} }

// isRefusedHere reports whether this replica has heard a refusal.
func (s *standing) isRefusedHere() bool {
	r := s.lastRefusal()
	return r != refusal{} && !r.elsewhere
}

// noteAnswer takes an answer, once, and reports whether the other replicas are to hear of it.
func (s *standing) noteAnswer(a answer) (tell bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.last
	switch {
	case !a.taken && a.heard.Equal(was.heard): // it is noted
		return false
	case !a.taken:
		s.last = refusal{heard: a.heard, method: a.method}
		if was.method == mcp.MethodToolsCall {
			s.last.method = was.method
		}
		return s.known.Load()
	}
	first := a.method == mcp.MethodToolsCall && !s.known.Swap(true)
	switch {
	case was == refusal{}:
		return false
	case a.endsRefusal(was):
		s.last = refusal{}
		return s.known.Load()
	}
	return first && !was.elsewhere // that it was refused meanwhile
}

// beginJudging reports whether the server is to be asked about the token now, and what it had said before.
func (s *standing) beginJudging() (was refusal, ask bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.judged.IsZero() || now.Sub(s.judged) >= lookAgain {
		s.judged, ask = now, true
	}
	return s.last, ask && s.last != refusal{}
}

// endRefusal notes that the server takes the token again, if it was not heard since.
func (s *standing) endRefusal(was refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == was {
		s.last = refusal{}
	}
}

// noteReplicas takes whether the other replicas can hear of a refusal, if the server was not heard since they
// were asked. was is the last refusal before that.
func (s *standing) noteReplicas(was refusal, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if refused {
		s.known.Store(true) // another replica knows it
	}
	switch {
	case s.last != was:
	case refused && was == refusal{}:
		s.last = refusal{heard: now, elsewhere: true, method: mcp.MethodToolsCall}
	case !refused && (was.elsewhere || now.Before(was.kept)): // the server takes it again at another one
		s.last = refusal{}
	}
}

// noteKept says until when the other replicas can hear of a refusal.
func (s *standing) noteKept(of refusal, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == of && of != (refusal{}) {
		s.last.kept = until
	}
}

// tellReplicas tells the other replicas what the server says of a token.
func (p *tokenCache) tellReplicas(of *shown) {
	if p.refusals == nil {
		return
	}
	keep, last, now := refusalKept, of.standing.lastRefusal(), time.Now()
	switch {
	case last == refusal{}:
		keep = 0
	case !of.Expires.IsZero():
		if keep = min(keep, time.Until(of.Expires)); keep <= 0 {
			return // it has expired
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), tellTime)
	defer stop()
	if p.refusals.SetRefused(ctx, p.upstream+":"+of.Hash, keep) == nil { // while the store is away, replicas cannot read tasks
		of.standing.noteKept(last, now.Add(keep))
	}
}

// askReplicas learns what the server has said of a token at other replicas.
func (p *tokenCache) askReplicas(ctx context.Context, t *shown) {
	if p.refusals == nil || t.authorization == "" {
		return
	}
	s := t.standing
	s.asking.Lock()
	defer s.asking.Unlock()
	if time.Now().Before(s.ask) {
		return
	}
	s.ask = time.Now().Add(askAgain)
	ctx, stop := context.WithTimeout(ctx, askTime)
	defer stop()
	was := s.lastRefusal()
	if refused, err := p.refusals.IsRefused(ctx, p.upstream+":"+t.Hash); err == nil {
		s.noteReplicas(was, refused)
		s.ask = time.Now().Add(refusalFresh)
	}
}

// Doubted refuses a caller whose token the server has refused: the caller owns and reads nothing until the
// server takes the token again.
func (c Caller) Doubted() *Refusal {
	if c.request != nil && c.request.own.standing.isRefused() {
		return c.request.invalid
	}
	return nil
}

// Reconsider asks the server about a token that it has refused, for a request that ends at the gateway: once in a
// while, since nothing else may go there with the token. It returns the refusal that is left.
func (c *Caller) Reconsider(takes func() bool) *Refusal {
	if c.Doubted() == nil {
		return nil
	}
	s := c.request.own.standing
	if was, ask := s.beginJudging(); ask && takes() {
		s.endRefusal(was)
		c.request.credential.from.tellReplicas(c.request.own)
	}
	if refusal := c.Doubted(); refusal != nil {
		return refusal
	}
	c.Principal.NoTasks = c.request.noTasks
	return nil
}
