package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// How often, and for how long, the keys of an issuer are fetched.
const (
	fetchTimeout = 10 * time.Second // for one attempt: metadata and keys
	fetchFloor   = 10 * time.Second // between two attempts that strangers ask for
	keyWait      = 5 * time.Second  // how long a request waits for an attempt
	retryFirst   = time.Second      // after an attempt that failed; doubled each time
	retryMost    = time.Minute
)

var (
	errNoKeys     = errors.New("the keys of the issuer cannot be had")
	errKeyless    = fmt.Errorf("%w: it publishes none", errNoKeys)
	errUnknownKey = errors.New("the issuer has no such key")
)

// issuer knows the keys of an authorization server. One goroutine (run) fetches them: at the
// start, from time to time, and when a token names a key that is not known. Anybody can send
// such a token, so that happens once in fetchFloor at most. Keys that were fetched hold until
// others are: an issuer that is down keeps nobody out whose key is known.
type issuer struct {
	fetch func(ctx context.Context) (*keySet, error)
	log   *slog.Logger
	keys  atomic.Pointer[keySet] // nil until there are any

	mu      sync.Mutex
	refresh time.Duration
	pending chan struct{} // closed after the attempt that is due or under way; nil for none
	ended   time.Time     // of the last attempt
	failed  error         // of the last attempt; nil where it was none

	asked chan struct{} // holds one: an attempt is due
}

func newIssuer(name, jwks string, log *slog.Logger) *issuer {
	return &issuer{
		fetch: newKeySource(name, jwks).fetch, log: log.With("issuer", name),
		pending: make(chan struct{}), asked: make(chan struct{}, 1),
	}
}

// every sets how often keys are fetched, if that is more often than before. It comes before run.
func (i *issuer) every(d time.Duration) {
	if i.refresh == 0 || d < i.refresh {
		i.refresh = d
	}
}

// key returns the key of that id, of the set that is known by then. It may wait for one
// attempt to fetch keys.
func (i *issuer) key(ctx context.Context, id string) (*key, *keySet, error) {
	set := i.keys.Load()
	if k := set.key(id); k != nil {
		return k, set, nil
	}
	if done := i.want(); done != nil {
		patience := time.NewTimer(keyWait)
		defer patience.Stop()
		select {
		case <-done:
		case <-patience.C:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	set = i.keys.Load()
	if k := set.key(id); k != nil {
		return k, set, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case set == nil && i.failed != nil && definite(i.failed):
		return nil, nil, errKeyless
	case set == nil, i.failed != nil:
		return nil, nil, errNoKeys // it may have this one
	}
	return nil, nil, errUnknownKey
}

// want returns what is closed after the next attempt; nil if it is too early for one.
func (i *issuer) want() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.pending == nil {
		if time.Since(i.ended) < fetchFloor {
			return nil
		}
		i.pending = make(chan struct{})
		i.asked <- struct{}{} // there is room: only one is pending
	}
	return i.pending
}

// run fetches keys until ctx ends.
func (i *issuer) run(ctx context.Context) error {
	retry := retryFirst
	for {
		pause := i.refresh
		if i.attempt(ctx) {
			retry = retryFirst
		} else {
			pause, retry = min(retry, i.refresh), min(2*retry, retryMost)
		}
		timer := time.NewTimer(pause)
		// A token with a key that is not known wakes it; else it fetches by the timer.
		select {
		case <-timer.C:
		case <-i.asked:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// attempt fetches keys once, and says whether there are some.
func (i *issuer) attempt(ctx context.Context) bool {
	i.mu.Lock()
	if i.pending == nil {
		i.pending = make(chan struct{})
	}
	i.mu.Unlock()

	bounded, stop := context.WithTimeout(ctx, fetchTimeout)
	defer stop()
	set, err := i.fetch(bounded)
	before := i.keys.Load()
	if err == nil && !set.same(before) { // what is remembered of tokens depends on the set
		i.keys.Store(set)
	}

	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case err != nil && i.failed == nil:
		i.log.Warn("the keys of an issuer cannot be fetched; known keys stay valid", "err", err, "known", before.size())
	case err == nil && (i.failed != nil || before == nil):
		i.log.Info("the keys of an issuer are known", "keys", set.size())
	}
	i.ended, i.failed = time.Now(), err
	select {
	case <-i.asked: // by this attempt
	default:
	}
	close(i.pending)
	i.pending = nil
	return err == nil
}
