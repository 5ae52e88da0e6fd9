package auth

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/wiretest"
)

// TestLookupsAtOnce: thousands of made-up tokens that come at once from one address have as few of them looked up as if
// they came one after another, and a new token from another address does not wait for them. Good tokens count
// for nothing, however many come at once.
func TestLookupsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLookups(maxLookups)
		const slow = 100 * time.Millisecond // to ask the issuer
		asks := func(verdict verdict, asked *atomic.Int64) func() (*verification, error) {
			return func() (*verification, error) {
				asked.Add(1)
				<-time.After(slow)
				return &verification{verdict: verdict}, nil
			}
		}
		var asked, refused, good atomic.Int64
		var all sync.WaitGroup
		for range 3000 {
			all.Go(func() {
				if _, err := l.lookUp(t.Context(), "a", nil, asks(unverified, &asked)); errors.Is(err, errTooMany) {
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		for range 5 {
			all.Go(func() {
				if _, err := l.lookUp(t.Context(), "b", nil, asks(verified, &good)); err != nil || time.Since(began) != slow {
					t.Errorf("from another address: %v after %v", err, time.Since(began))
				}
			})
		}
		all.Wait()
		if n := asked.Load(); n != failuresAtOnce || refused.Load() != 3000-n {
			t.Errorf("the issuer was asked %d times, and %d were refused", n, refused.Load())
		}
		var out atomic.Int64
		for range 10 * failuresAtOnce {
			all.Go(func() {
				if _, err := l.lookUp(t.Context(), "c", nil, asks(verified, &good)); err != nil {
					out.Add(1)
				}
			})
		}
		all.Wait()
		if out.Load() > 0 {
			t.Errorf("%d good tokens are refused", out.Load())
		}
	})
}

// TestLookupsFromEverywhere: many addresses at once have so many made-up tokens looked up and no more, and whoever
// comes from where a good token came is let in meanwhile.
func TestLookupsFromEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLookups(maxLookups)
		finds := func(verdict verdict) func() (*verification, error) {
			return func() (*verification, error) { return &verification{verdict: verdict}, nil }
		}
		wiretest.Must(l.lookUp(t.Context(), "known", nil, finds(verified)))(t)
		var asked atomic.Int64
		var all sync.WaitGroup
		for n := range 1000 {
			all.Go(func() {
				_, _ = l.lookUp(t.Context(), fmt.Sprint(n), nil, func() (*verification, error) {
					asked.Add(1)
					return &verification{}, nil
				})
			})
		}
		all.Wait()
		if n := asked.Load(); n != allFailuresAtOnce {
			t.Errorf("the issuer was asked %d times", n)
		}
		if _, err := l.lookUp(t.Context(), "known", nil, finds(verified)); err != nil {
			t.Error("from where a good token came:", err)
		}
		if _, err := l.lookUp(t.Context(), "new", nil, finds(verified)); !errors.Is(err, errTooMany) {
			t.Error("from a new address:", err)
		}
	})
}
