// Package remember keeps the answers of another party, such as a server or an issuer of tokens, for as long as
// they are believed. The next caller asks again for an old answer, which serves until there is a new one.
package remember

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
)

// How long an answer of a server is believed (design.md 0.27).
const (
	// Usual is for servers that give no hint, such as all of the legacy era.
	Usual = 5 * time.Minute
	// Least spares a server that says "not at all" a question before each request, and a server in
	// trouble an immediate second one.
	Least = 10 * time.Second
	// Most is for servers that say more.
	Most = time.Hour
	// Wait is how long a request waits for a new answer while there is an old one.
	Wait = time.Second
	// NoWait is the patience of a request that takes an old answer as it is, and AnyAge is for answers that only have
	// to be believed still.
	NoWait = -1
	AnyAge = math.MaxInt64
)

// Freshness is how long a result is believed: the hint of a modern one, within bounds (protocol.md
// 2.9).
func Freshness(result []byte) time.Duration {
	hint, _ := jsonrpc.Get(result, "ttlMs")
	ms, err := strconv.ParseFloat(string(hint), 64)
	if err != nil || ms < 0 {
		return Usual
	}
	return time.Duration(min(max(ms, float64(Least.Milliseconds())), float64(Most.Milliseconds()))) * time.Millisecond
}

// Answers are answers under keys, each believed for a time. They are safe for concurrent use.
type Answers[K comparable, T any] struct {
	work   *work.Background
	most   int // bounds the kept answers
	asking singleflight.Group

	mu sync.Mutex
	m  map[K]*Answer[T] // an entry is replaced, never changed
}

// New makes room for most answers. The functions that ask for them run in w.
func New[K comparable, T any](w *work.Background, most int) *Answers[K, T] {
	return &Answers[K, T]{work: w, most: most, m: make(map[K]*Answer[T])}
}

// Answer is one answer, or the place of one that is being asked for the first time.
type Answer[T any] struct {
	Value T
	At    time.Time // when it was given
	Until time.Time // how long it is believed
	known bool      // false for a mere place
}

// Fresh reports whether there is an answer, and it is still believed.
func (s *Answer[T]) Fresh() bool { return s.isNewer(AnyAge) }

// isNewer is Fresh for an answer of less than this age.
func (s *Answer[T]) isNewer(age time.Duration) bool {
	return s != nil && s.known && time.Now().Before(s.Until) && time.Since(s.At) < age
}

// Find returns the answer under a key, however old; nil if there is none.
func (r *Answers[K, T]) Find(k K) *Answer[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.m[k]; s != nil && s.known {
		return s
	}
	return nil
}

// Get returns the answer under a key. If that is missing or old, ask gets a new one, once for all who
// need it then. While there is an old one, Get waits for at most patience; 0 is unbounded. An error
// comes with the old answer, or nil.
func (r *Answers[K, T]) Get(ctx context.Context, k K, patience time.Duration, ask func(context.Context) (T, time.Duration, error)) (*Answer[T], error) {
	return r.GetNewer(ctx, k, AnyAge, patience, ask)
}

// GetNewer is Get for an answer of less than this age.
func (r *Answers[K, T]) GetNewer(ctx context.Context, k K, age, patience time.Duration, ask func(context.Context) (T, time.Duration, error)) (*Answer[T], error) {
	old := r.Find(k)
	if old.isNewer(age) {
		return old, nil
	}
	if old != nil && patience != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	now, err := work.Once(ctx, r.work, &r.asking, spellKey(k), func(ctx context.Context) (*Answer[T], error) { return r.renew(ctx, k, age, ask) })
	if err != nil {
		return old, err
	}
	return now, nil
}

// renew asks. The new answer is kept only if the entry was left alone meanwhile; after a Put or a
// Doubt it serves only those who wait for it.
func (r *Answers[K, T]) renew(ctx context.Context, k K, age time.Duration, ask func(context.Context) (T, time.Duration, error)) (*Answer[T], error) {
	r.mu.Lock()
	if r.m[k] == nil {
		r.set(k, &Answer[T]{})
	}
	before := r.m[k]
	r.mu.Unlock()
	if before.isNewer(age) {
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

// Put stores an answer that was given at this time, unasked.
func (r *Answers[K, T]) Put(k K, value T, at time.Time, fresh time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(k, &Answer[T]{Value: value, known: true, At: at, Until: at.Add(fresh)})
}

// set stores an entry. Clients choose the keys, so an arbitrary entry goes if there is no room. r.mu
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

// Doubt makes the answers that which picks old as soon as they have this age. An answer that is on its
// way may be old already, so later callers ask again.
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

// spellKey spells a key for a singleflight.Group.
func spellKey(k any) string { return fmt.Sprintf("%#v", k) }

// Every picks every answer.
func Every[K comparable](K) bool { return true }
