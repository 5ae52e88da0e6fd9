// Package remember keeps what a server has answered, for as long as that is believed. An old answer is
// asked for again by whoever needs it next, and serves on as long as there is no new one.
package remember

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
)

// How long an answer of a server is believed (design.md 0.27).
const (
	// Usual is for servers that do not say it: those of the legacy era never do.
	Usual = 5 * time.Minute
	// Least keeps a server that says "not at all" from being asked before each request,
	// and one that cannot answer from being asked again at once.
	Least = 10 * time.Second
	// Most is for a server that says more.
	Most = time.Hour
	// Wait is how long a request waits for a new answer where there is an old one.
	Wait = time.Second
)

// Freshness is how long a result is believed, by the hint that a modern one carries
// (protocol.md 2.9).
func Freshness(result []byte) time.Duration {
	hint, _ := jsonrpc.Get(result, "ttlMs")
	ms, err := strconv.ParseFloat(string(hint), 64)
	if err != nil || ms < 0 {
		return Usual
	}
	return time.Duration(min(max(ms, float64(Least.Milliseconds())), float64(Most.Milliseconds()))) * time.Millisecond
}

// Answers are answers of a server, each under a key and believed for a time. They are safe for
// concurrent use.
type Answers[K comparable, T any] struct {
	work   *work.Background
	most   int // answers that are kept
	asking singleflight.Group

	mu sync.Mutex
	m  map[K]*Answer[T] // an entry is replaced and never changed
}

// New makes room for so many answers. What asks for them runs in w.
func New[K comparable, T any](w *work.Background, most int) *Answers[K, T] {
	return &Answers[K, T]{work: w, most: most, m: make(map[K]*Answer[T])}
}

// Answer is one answer, or the place of one that is asked for the first time.
type Answer[T any] struct {
	Value T
	At    time.Time // when it was given
	Until time.Time // how long it is believed
	known bool      // false: the place only
}

// Fresh reports whether there is an answer that is believed.
func (s *Answer[T]) Fresh() bool { return s != nil && s.known && time.Now().Before(s.Until) }

// Find is the answer under a key, however old; nil for none.
func (r *Answers[K, T]) Find(k K) *Answer[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.m[k]; s != nil && s.known {
		return s
	}
	return nil
}

// Get is the answer under a key. If there is none that is fresh, ask gets one, once for all
// who need it then. Where there is an old one, it is waited for at most patience long, if that
// is not 0. An error comes with the old answer, or nil.
func (r *Answers[K, T]) Get(ctx context.Context, k K, patience time.Duration, ask func(context.Context) (T, time.Duration, error)) (*Answer[T], error) {
	old := r.Find(k)
	if old.Fresh() {
		return old, nil
	}
	if old != nil && patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	now, err := work.Once(ctx, r.work, &r.asking, spellKey(k), func(ctx context.Context) (*Answer[T], error) { return r.renew(ctx, k, ask) })
	if err != nil {
		return old, err
	}
	return now, nil
}

// renew asks. An answer that was put or doubted meanwhile is not replaced: what was asked for
// before is for those who wait for it, and for nobody after.
func (r *Answers[K, T]) renew(ctx context.Context, k K, ask func(context.Context) (T, time.Duration, error)) (*Answer[T], error) {
	r.mu.Lock()
	if r.m[k] == nil {
		r.set(k, &Answer[T]{})
	}
	before := r.m[k]
	r.mu.Unlock()
	if before.Fresh() {
		return before, nil
	}
	value, fresh, err := ask(ctx)
	now := &Answer[T]{Value: value, known: true, At: time.Now(), Until: time.Now().Add(fresh)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m[k] == before {
		switch {
		case err == nil:
			r.m[k] = now
		case before.known:
			again := *before
			again.Until = time.Now().Add(Least)
			r.m[k] = &again
		default:
			delete(r.m, k)
		}
	}
	return now, err
}

// Put is an answer that came unasked.
func (r *Answers[K, T]) Put(k K, value T, fresh time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(k, &Answer[T]{Value: value, known: true, At: time.Now(), Until: time.Now().Add(fresh)})
}

// set keeps an entry. Keys are the clients' to make up, so another entry may go for it. r.mu
// is held.
func (r *Answers[K, T]) set(k K, s *Answer[T]) {
	if r.m[k] == nil && len(r.m) >= r.most {
		for other := range r.m {
			delete(r.m, other)
			break
		}
	}
	r.m[k] = s
}

// Doubt has the answers that which picks be asked for again as soon as they have this age. What
// is being asked for just now may be the old answer: it is not for those who come from now on.
func (r *Answers[K, T]) Doubt(age time.Duration, which func(K) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, s := range r.m {
		if !which(k) {
			continue
		}
		old := *s
		if until := s.At.Add(age); until.Before(s.Until) {
			old.Until = until
		}
		r.m[k] = &old
		r.asking.Forget(spellKey(k))
	}
}

// Drop forgets the answers that which picks.
func (r *Answers[K, T]) Drop(which func(K) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.m {
		if which(k) {
			delete(r.m, k)
			r.asking.Forget(spellKey(k))
		}
	}
}

// spellKey is a key as a singleflight.Group takes it.
func spellKey(k any) string { return fmt.Sprintf("%#v", k) }

// Every picks every answer.
func Every[K comparable](K) bool { return true }
