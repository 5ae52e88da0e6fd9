package auth

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"taskgate/internal/work"
)

const (
	fetchTimeout = 10 * time.Second // of one attempt
	fetchWait    = 5 * time.Second  // how long a request waits for one
	fetchFloor   = 10 * time.Second // between two attempts
	retryFloor   = time.Second      // between two attempts before the first answer
	holdFor      = 12 * time.Hour   // how long the last good answer holds after failed attempts
)

// refreshEvery is how often the keys of an issuer, and the metadata of a server, are fetched. Issuers announce
// a new key for longer than that.
const refreshEvery = 10 * time.Minute

// fetched is a cached answer of another party: the keys of an issuer, or the metadata of a server. It is
// fetched when it is first needed, and again once it is older than refreshEvery. A request that finds it old
// gets it as it is, while a newer one is fetched. If an attempt fails, the last good answer holds, for holdFor
// at most, and the next attempt comes soon. All requests that wait share one attempt.
type fetched[T any] struct {
	fetch  func(ctx context.Context) (T, error)
	work   *work.Background
	asking singleflight.Group

	mu     sync.Mutex
	answer T         // the last good one
	at     time.Time // when that was fetched; zero for never
	tried  time.Time // when the last attempt ended; zero for never
	err    error     // of the last attempt
	doubt  bool      // the answer may be outdated
	doubts *rate.Limiter

	renewing bool // a goroutine waits for a newer answer
}

// getAnswer returns the answer. It waits for the first one, and for a newer one if the last good one was unused
// for long.
func (f *fetched[T]) getAnswer(ctx context.Context) (T, error) {
	f.mu.Lock()
	answer, err := f.latestState()
	due, wait := f.isDue()
	begin := due && !wait && !f.renewing
	f.renewing = f.renewing || begin
	f.mu.Unlock()
	switch {
	case due && wait:
		if answer, err = f.attemptFetch(ctx, false); err != nil { // the last good answer serves then
			if known, ok := f.lastGood(); ok {
				return known, nil
			}
		}
	case begin:
		f.work.Go(ctx, func(ctx context.Context) {
			_, _ = f.attemptFetch(ctx, false)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.renewing = false
		})
	}
	return answer, err
}

// renewAnswer returns an answer that is fetched now, or was within fetchFloor; an error if the attempt takes
// too long.
func (f *fetched[T]) renewAnswer(ctx context.Context) (T, error) { return f.attemptFetch(ctx, true) }

// lastGood returns the last good answer as it is; false if none holds.
func (f *fetched[T]) lastGood() (T, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer, f.hasGood()
}

// expireAnswer makes the next getAnswer fetch the answer.
func (f *fetched[T]) expireAnswer() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tried = time.Time{}
}

// distrustAnswer makes a later getAnswer fetch the answer again: at once a few times, and then after
// fetchFloor, since strangers may cause this. The known answer holds until then.
func (f *fetched[T]) distrustAnswer() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.doubts == nil {
		f.doubts = rate.NewLimiter(rate.Every(fetchFloor), 5)
	}
	if f.doubt = true; f.doubts.Allow() {
		f.tried = time.Time{}
	}
}

// hasGood reports whether there is a good answer. The caller holds f.mu.
func (f *fetched[T]) hasGood() bool { return !f.at.IsZero() && time.Since(f.at) < holdFor }

// latestState returns what is known now. The caller holds f.mu.
func (f *fetched[T]) latestState() (T, error) {
	if f.hasGood() {
		return f.answer, nil
	}
	var none T
	return none, f.err
}

// isDue reports whether it is time for an attempt, and whether a request has to wait for that. The caller holds
// f.mu.
func (f *fetched[T]) isDue() (due, wait bool) {
	since := time.Since(f.tried)
	switch {
	case f.tried.IsZero():
		return true, true
	case f.hasGood() && f.err == nil && !f.doubt:
		return since >= refreshEvery, since >= 2*refreshEvery
	case f.hasGood():
		return since >= fetchFloor, f.doubt
	case isDefinite(f.err): // the other party has answered that it is missing
		return since >= fetchFloor, false
	}
	return since >= retryFloor, true
}

// attemptFetch makes an attempt, or waits for the one under way.
func (f *fetched[T]) attemptFetch(ctx context.Context, anew bool) (T, error) {
	ctx, stop := context.WithTimeout(ctx, fetchWait)
	defer stop()
	return work.Once(ctx, f.work, &f.asking, "", func(ctx context.Context) (T, error) {
		f.mu.Lock()
		due, _ := f.isDue()
		if anew {
			due = time.Since(f.tried) >= fetchFloor
		}
		if !due {
			defer f.mu.Unlock()
			return f.latestState()
		}
		f.mu.Unlock()
		ctx, stop := context.WithTimeout(ctx, fetchTimeout)
		defer stop()
		answer, err := f.fetch(ctx)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.tried, f.err, f.doubt = time.Now(), err, false
		if err == nil {
			f.answer, f.at = answer, f.tried
		}
		return f.latestState()
	})
}
