package gateway

import (
	"net/http"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"taskgate/gateway/auth"
	"taskgate/gateway/wire"
	"taskgate/shim"
)

// maxLimiters bounds the callers with a rate at a time, separately for known callers and for
// addresses. A further one takes the place of the longest quiet one, which then has its whole burst
// again.
const maxLimiters = 50_000

// pace bounds the requests of a caller per second to this replica. A caller counts by its principal
// if its credentials are remembered, else by its address, so a stranger who sends too much causes
// no look-ups. Nil is no bound.
type pace struct {
	limit     rate.Limit
	burst     int
	known     *lru.Cache[string, *rate.Limiter] // by owner
	addresses *lru.Cache[string, *rate.Limiter] // apart, so that strangers take no room from known callers
	tel       *wire.Telemetry
}

func newPace(perSecond int, tel *wire.Telemetry) *pace {
	if perSecond == 0 {
		return nil
	}
	known, _ := lru.New[string, *rate.Limiter](maxLimiters) // fails only for size 0
	addresses, _ := lru.New[string, *rate.Limiter](maxLimiters)
	return &pace{limit: rate.Limit(perSecond), burst: perSecond, known: known, addresses: addresses, tel: tel}
}

// admit lets a request in, or answers one that comes too early. The body of that stays unread.
func (p *pace) admit(w http.ResponseWriter, r *http.Request, method auth.Method) bool {
	if p == nil {
		return true
	}
	owner := method.Recall(r)
	wait := p.takePlace(r, owner)
	if wait == 0 {
		return true
	}
	leaveUnread(w, r)
	p.tel.Refuse(w, r, wire.Request{Principal: shim.Principal{Subject: owner}}, wire.TurnAway(&shim.BusyError{Key: wire.KeyRate, Limit: "requests of this caller", RetryAfter: wait}))
	return false
}

// takePlace counts a request, or returns the time until it would be allowed.
func (p *pace) takePlace(r *http.Request, owner string) time.Duration {
	table, key := p.known, owner
	if owner == "" {
		table, key = p.addresses, auth.AddressOf(r)
	}
	limiter, ok := table.Get(key)
	if !ok {
		limiter = rate.NewLimiter(p.limit, p.burst)
		if before, there, _ := table.PeekOrAdd(key, limiter); there { // since
			limiter = before
		}
	}
	now := time.Now()
	place := limiter.ReserveN(now, 1)
	wait := place.DelayFrom(now)
	if wait > 0 {
		place.CancelAt(now)
	}
	return wait
}
