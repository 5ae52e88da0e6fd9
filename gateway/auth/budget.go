package auth

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// These bound the failed look-ups, in the long run and at once, to protect the issuer from made-up tokens.
const (
	failuresOfAddress, failuresAtOnce = rate.Limit(1), 20
	failuresOfAll, allFailuresAtOnce  = rate.Limit(100), 200
	lookupsOfAddress                  = 8 // that run at a time, of the slots for all strangers
	maxAddresses                      = 10_000
	knownAddressFor                   = time.Hour // a good token came from it
)

// errTooMany says that too many look-ups have failed.
var errTooMany = errors.New("too many tokens were looked up that are nobody's")

var tooManyLookups = &Refusal{http.StatusTooManyRequests, "", "too many tokens that are nobody's have come from there; try again in a while"}

// lookups bound the questions to issuers about tokens. Only a failed look-up counts. A token that was good
// before is looked up in any case.
type lookups struct {
	strangers chan struct{} // full while that many are looked up
	known     chan struct{} // likewise, for tokens that were good before
	all       *rate.Limiter
	addresses *lru.Cache[string, *lookupsOf]
}

// lookupsOf are the look-ups of one address.
type lookupsOf struct {
	slots    chan struct{} // full while that many are looked up
	failures *rate.Limiter
	good     atomic.Int64 // when a good token came from it, in nanoseconds
}

func newLookups(most int) *lookups {
	addresses, _ := lru.New[string, *lookupsOf](maxAddresses) // fails only for size 0
	return &lookups{make(chan struct{}, most), make(chan struct{}, most), rate.NewLimiter(failuresOfAll, allFailuresAtOnce), addresses}
}

// lookupsFrom returns the look-ups of an address, the same for all requests from it.
func (l *lookups) lookupsFrom(address string) *lookupsOf {
	if of, ok := l.addresses.Get(address); ok {
		return of
	}
	of := &lookupsOf{slots: make(chan struct{}, lookupsOfAddress), failures: rate.NewLimiter(failuresOfAddress, failuresAtOnce)}
	if before, ok, _ := l.addresses.PeekOrAdd(address, of); ok {
		return before
	}
	return of
}

// lookUp looks up a token that came from an address, if the bounds allow it. A token that the server has
// taken passes the bounds on strangers.
func (l *lookups) lookUp(ctx context.Context, address string, before *verification, ask func() (*verification, error)) (*verification, error) {
	if before != nil && (before.verdict != unverified || !before.standing.isRefusedHere()) {
		return inSlots(ctx, ask, l.known)
	}
	of := l.lookupsFrom(address)
	return inSlots(ctx, func() (*verification, error) {
		giveBack, ok := of.takeFailure(l.all)
		if !ok {
			return nil, errTooMany
		}
		f, err := ask()
		if err == nil && f.verdict == verified {
			of.good.Store(time.Now().UnixNano())
			giveBack()
		}
		return f, err
	}, of.slots, l.strangers)
}

// inSlots calls do while it has a place in each of the slots.
func inSlots(ctx context.Context, do func() (*verification, error), slots ...chan struct{}) (*verification, error) {
	for _, s := range slots {
		select {
		case s <- struct{}{}:
			defer func() { <-s }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return do()
}

// takeFailure counts a failure in advance, so that concurrent look-ups count as well. An address from which
// a good token came is exempt from the bound on all addresses.
func (of *lookupsOf) takeFailure(all *rate.Limiter) (giveBack func(), ok bool) {
	taken := []*rate.Limiter{of.failures}
	giveBack = func() {
		for _, l := range taken {
			l.AllowN(time.Now(), -1) // a Reservation whose time has come cannot be given back
		}
	}
	if !of.failures.Allow() {
		return nil, false
	}
	if all.Allow() {
		taken = append(taken, all)
	} else if time.Since(time.Unix(0, of.good.Load())) > knownAddressFor {
		giveBack()
		return nil, false
	}
	return giveBack, true
}
