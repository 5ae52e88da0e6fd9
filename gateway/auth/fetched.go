package auth

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"taskgate/gateway/remember"
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

// fetched is an answer of another party that is remembered: the keys of an issuer, or the metadata of a server. It is
// fetched when it is first needed, and again once it is older than refreshEvery. A request that finds it old
// gets it as it is, while a newer one is fetched. If an attempt fails, the last good answer holds, for holdFor
// at most, and the next attempt comes soon. All requests that wait share one attempt.
type fetched[T any] struct {
	fetch    func(ctx context.Context) (T, error)
	attempts *remember.Answers[struct{}, attempt[T]] // the latest one
	doubted  atomic.Bool                             // the answer may be outdated
	doubts   *rate.Limiter
}

// attempt is what is known after an attempt to fetch an answer.
type attempt[T any] struct {
	answer T         // the last good one
	at     time.Time // when that was fetched; zero for never
	err    error     // of this attempt
}

func newFetched[T any](fetch func(context.Context) (T, error), lasting *work.Background) *fetched[T] {
	return &fetched[T]{
		fetch: fetch, attempts: remember.New[struct{}, attempt[T]](lasting, 1), doubts: rate.NewLimiter(rate.Every(fetchFloor), 5),
	}
}

// hasGood reports whether there is a good answer.
func (a attempt[T]) hasGood() bool { return !a.at.IsZero() && time.Since(a.at) < holdFor }

// state returns what is known now.
func (a attempt[T]) state() (T, error) {
	if a.hasGood() {
		return a.answer, nil
	}
	var none T
	return none, a.err
}

// getAnswer returns the answer. It waits for the first one, and for a newer one if the last good one is doubted, or was
// unused for long. That the other party has said that it has none is an answer, too.
func (f *fetched[T]) getAnswer(ctx context.Context) (T, error) {
	known, doubted := f.attempts.Find(struct{}{}), f.doubted.Load()
	age, patience := time.Duration(remember.AnyAge), time.Duration(0)
	switch {
	case known == nil:
	case doubted:
		age = fetchFloor
	case known.Fresh():
		return known.Value.state()
	case known.Value.err == nil && time.Since(known.At) < 2*refreshEvery, known.Value.err != nil && (known.Value.hasGood() || isDefinite(known.Value.err)):
		patience = remember.NoWait
	}
	a, err := f.attemptWithin(ctx, age, patience)
	if a == nil {
		var none T
		return none, err
	}
	return a.Value.state()
}

// renewAnswer returns an answer that is fetched now, or was within fetchFloor; an error if the attempt takes
// too long.
func (f *fetched[T]) renewAnswer(ctx context.Context) (T, error) {
	a, err := f.attemptWithin(ctx, fetchFloor, 0)
	if err != nil {
		var none T
		return none, err
	}
	return a.Value.state()
}

// lastGood returns the last good answer as it is; false if none holds.
func (f *fetched[T]) lastGood() (answer T, ok bool) {
	if known := f.attempts.Find(struct{}{}); known != nil {
		return known.Value.answer, known.Value.hasGood()
	}
	return answer, false
}

// expireAnswer makes the next getAnswer fetch the answer.
func (f *fetched[T]) expireAnswer() {
	f.doubted.Store(true)
	f.attempts.Doubt(0, remember.Every)
}

// distrustAnswer makes a later getAnswer fetch the answer again: at once a few times, and then after
// fetchFloor, since strangers may cause this. The known answer holds until then.
func (f *fetched[T]) distrustAnswer() {
	if f.doubted.Store(true); f.doubts.Allow() {
		f.expireAnswer()
	}
}

// attemptWithin returns an attempt of less than this age, or makes one.
func (f *fetched[T]) attemptWithin(ctx context.Context, age, patience time.Duration) (*remember.Answer[attempt[T]], error) {
	ctx, stop := context.WithTimeout(ctx, fetchWait)
	defer stop()
	return f.attempts.GetNewer(ctx, struct{}{}, age, patience, f.attemptFetch)
}

// attemptFetch makes an attempt. It returns after what time another one may be made.
func (f *fetched[T]) attemptFetch(ctx context.Context) (attempt[T], time.Duration, error) {
	ctx, stop := context.WithTimeout(ctx, fetchTimeout)
	defer stop()
	answer, err := f.fetch(ctx)
	f.doubted.Store(false)
	if err == nil {
		return attempt[T]{answer: answer, at: time.Now()}, refreshEvery, nil
	}
	var now attempt[T]
	if before := f.attempts.Find(struct{}{}); before != nil {
		now = before.Value
	}
	if now.err = err; now.hasGood() || isDefinite(err) { // the other party has answered that it is missing
		return now, fetchFloor, nil
	}
	return now, retryFloor, nil
}
