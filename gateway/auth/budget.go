package auth

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// These bound the failed look-ups, in the long run and at once, to protect the issuer from made-up tokens.
const (
	failuresOfAddress, failuresAtOnce = rate.Limit(1), 20
	failuresOfAll, allFailuresAtOnce  = rate.Limit(100), 200
	failuresOfTaken, takenAtOnce      = failuresOfAll / 2, allFailuresAtOnce / 2 // of all, of tokens that the server has taken
	lookupsOfAddress                  = 8                                        // that run at a time, of the slots for all strangers
	maxAddresses                      = 10_000
	knownAddressFor                   = time.Hour // a good token came from it
)

// errTooMany says that too many look-ups have failed.
var errTooMany = errors.New("too many tokens were looked up that are nobody's")

// lookups bound the questions to issuers about tokens. Only a failed look-up counts. A token that was good
// before is looked up in any case. One that the server has taken for a call does not count for its address, which
// many callers may have; the rest of the bound on all is for addresses that are within theirs.
type lookups struct {
	strangers chan struct{} // full while that many are looked up
	known     chan struct{} // likewise, for tokens that were good before
	all       *rate.Limiter
	taken     *rate.Limiter
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
	return &lookups{make(chan struct{}, most), make(chan struct{}, most), rate.NewLimiter(failuresOfAll, allFailuresAtOnce), rate.NewLimiter(failuresOfTaken, takenAtOnce), addresses}
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

// lookUp looks up a token that came from an address, if the bounds allow it; else the error is errTooMany.
func (l *lookups) lookUp(ctx context.Context, address string, before *verification, ask func() (*verification, error)) (*verification, error) {
	of := l.lookupsFrom(address)
	counted := func(take func() (giveBack func(), ok bool)) func() (*verification, error) {
		return func() (*verification, error) {
			giveBack, ok := take()
			if !ok {
				return nil, errTooMany
			}
			f, err := ask()
			if err == nil && f.verdict == verified {
				of.good.Store(time.Now().UnixNano())
				giveBack()
			}
			return f, err
		}
	}
	switch {
	case before != nil && before.verdict != unverified:
		return inSlots(ctx, ask, l.known)
	case before != nil && before.standing.known.Load() && !before.standing.isRefusedHere():
		return inSlots(ctx, counted(func() (func(), bool) { return takeAll(l.taken, l.all) }), l.known)
	}
	return inSlots(ctx, counted(func() (func(), bool) { return of.takeFailure(l.all) }), of.slots, l.strangers)
}

// takeAll takes one of each, or none.
func takeAll(limiters ...*rate.Limiter) (giveBack func(), ok bool) {
	var taken []*rate.Limiter
	giveBack = func() {
		for _, l := range taken {
			l.AllowN(time.Now(), -1) // a Reservation whose time has come cannot be given back
		}
	}
	for _, l := range limiters {
		if !l.Allow() {
			giveBack()
			return nil, false
		}
		taken = append(taken, l)
	}
	return giveBack, true
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
	if giveBack, ok = takeAll(of.failures, all); ok || time.Since(time.Unix(0, of.good.Load())) > knownAddressFor {
		return giveBack, ok
	}
	return takeAll(of.failures)
}
