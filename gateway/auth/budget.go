package auth

import (
	"context"
	"errors"
	"net/http"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// How many look-ups may find nobody, in the long run and at once: made-up tokens must not exhaust the
// issuer.
const (
	failuresOfAddress, failuresAtOnce = rate.Limit(1), 20
	failuresOfAll, allFailuresAtOnce  = rate.Limit(100), 200
	maxAddresses                      = 10_000
	knownAddressFor                   = time.Hour // a good token came from it
)

// errTooMany: too many look-ups have found nobody.
var errTooMany = errors.New("too many tokens were looked up that are nobody's")

var tooManyLookups = &Refusal{http.StatusTooManyRequests, "", "too many tokens that are nobody's have come from there; try again in a while"}

// lookups bound what is asked of issuers for tokens. A look-up counts only if it finds nobody, and a
// token that was good before is asked about whatever strangers do.
type lookups struct {
	strangers chan struct{} // full while so many are looked up
	known     chan struct{} // likewise, for tokens that were good before
	all       *rate.Limiter
	addresses *lru.Cache[string, *lookupsOf]
}

// lookupsOf are those of one address.
type lookupsOf struct {
	failures *rate.Limiter
	good     time.Time // when a good token came from it
}

func newLookups(most int) *lookups {
	addresses, _ := lru.New[string, *lookupsOf](maxAddresses) // fails for no size only
	return &lookups{make(chan struct{}, most), make(chan struct{}, most), rate.NewLimiter(failuresOfAll, allFailuresAtOnce), addresses}
}

// do looks a token up that came from an address, if it may.
func (l *lookups) do(ctx context.Context, address string, before *verification, ask func() (*verification, error)) (*verification, error) {
	slots := l.known
	var of lookupsOf
	stranger := before == nil || before.verdict == unverified
	if stranger {
		slots = l.strangers
		if known, ok := l.addresses.Get(address); ok {
			of = *known
		} else {
			of.failures = rate.NewLimiter(failuresOfAddress, failuresAtOnce)
		}
		if of.failures.Tokens() < 1 || l.all.Tokens() < 1 && time.Since(of.good) > knownAddressFor {
			return nil, errTooMany
		}
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-slots }()
	f, err := ask()
	switch {
	case !stranger:
	case err == nil && f.verdict == verified:
		of.good = time.Now()
		l.addresses.Add(address, &of)
	default:
		of.failures.Allow()
		l.all.Allow()
		l.addresses.Add(address, &of)
	}
	return f, err
}
