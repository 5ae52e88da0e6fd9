package upstream

import (
	"context"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/work"
)

// How long an answer of a server is believed (design.md 0.27).
const (
	// defaultFresh is for servers that do not say it: those of the legacy era never do.
	defaultFresh = 5 * time.Minute
	// leastFresh keeps a server that says "not at all" from being asked before each request,
	// and one that cannot answer from being asked again at once.
	leastFresh = 10 * time.Second
	mostFresh  = time.Hour
	// renewWait is how long a request waits for a new answer where there is an old one.
	renewWait = time.Second
)

// freshness is how long a result is believed, by the hint that a modern one carries
// (protocol.md 2.9).
func freshness(result []byte) time.Duration {
	hint, _ := jsonrpc.Get(result, "ttlMs")
	ms, err := strconv.ParseFloat(string(hint), 64)
	if err != nil || ms < 0 {
		return defaultFresh
	}
	return time.Duration(min(max(ms, float64(leastFresh.Milliseconds())), float64(mostFresh.Milliseconds()))) * time.Millisecond
}

// remembered are answers of a server, each under a key and believed for a time. An old answer
// is asked for again by whoever needs it next, and serves on as long as there is no new one.
type remembered[T any] struct {
	work   *work.Background
	most   int // answers that are kept
	asking singleflight.Group

	mu sync.Mutex
	m  map[sessionKey]*said[T] // an entry is replaced and never changed
}

// said is one answer, or the place of one that is asked for the first time.
type said[T any] struct {
	value T
	known bool // false: the place only
	at    time.Time
	until time.Time
}

func (s *said[T]) fresh() bool { return s != nil && s.known && time.Now().Before(s.until) }

// find is the answer under a key, however old; nil for none.
func (r *remembered[T]) find(k sessionKey) *said[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.m[k]; s != nil && s.known {
		return s
	}
	return nil
}

// get is the answer under a key. If there is none that is fresh, ask gets one, once for all
// who need it then. Where there is an old one, it is waited for at most patience long, if that
// is not 0. An error comes with the old answer, or nil.
func (r *remembered[T]) get(ctx context.Context, k sessionKey, patience time.Duration, ask func(context.Context) (T, time.Duration, error)) (*said[T], error) {
	old := r.find(k)
	if old.fresh() {
		return old, nil
	}
	if old != nil && patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	now, err := work.Once(ctx, r.work, &r.asking, k.String(), func(ctx context.Context) (*said[T], error) { return r.renew(ctx, k, ask) })
	if err != nil {
		return old, err
	}
	return now, nil
}

// renew asks. An answer that was put or doubted meanwhile is not replaced: what was asked for
// before is for those who wait for it, and for nobody after.
func (r *remembered[T]) renew(ctx context.Context, k sessionKey, ask func(context.Context) (T, time.Duration, error)) (*said[T], error) {
	before := r.begin(k)
	if before.fresh() {
		return before, nil
	}
	value, fresh, err := ask(ctx)
	now := &said[T]{value: value, known: true, at: time.Now(), until: time.Now().Add(fresh)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m[k] == before {
		switch {
		case err == nil:
			r.m[k] = now
		case before.known:
			again := *before
			again.until = time.Now().Add(leastFresh)
			r.m[k] = &again
		default:
			delete(r.m, k)
		}
	}
	return now, err
}

// begin is the entry of a key, made if there is none.
func (r *remembered[T]) begin(k sessionKey) *said[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m[k] == nil {
		r.set(k, &said[T]{})
	}
	return r.m[k]
}

// put is an answer that came unasked.
func (r *remembered[T]) put(k sessionKey, value T, fresh time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(k, &said[T]{value: value, known: true, at: time.Now(), until: time.Now().Add(fresh)})
}

// set keeps an entry. Keys are the clients' to make up, so another entry may go for it. r.mu
// is held.
func (r *remembered[T]) set(k sessionKey, s *said[T]) {
	if r.m == nil {
		r.m = make(map[sessionKey]*said[T])
	}
	if r.m[k] == nil && len(r.m) >= r.most {
		for other := range r.m {
			delete(r.m, other)
			break
		}
	}
	r.m[k] = s
}

// doubt has the answers that which picks be asked for again as soon as they have this age. What
// is being asked for just now may be the old answer: it is not for those who come from now on.
func (r *remembered[T]) doubt(age time.Duration, which func(sessionKey) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, s := range r.m {
		if !which(k) {
			continue
		}
		old := *s
		if until := s.at.Add(age); until.Before(s.until) {
			old.until = until
		}
		r.m[k] = &old
		r.asking.Forget(k.String())
	}
}

// drop forgets the answers that which picks.
func (r *remembered[T]) drop(which func(sessionKey) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.m {
		if which(k) {
			delete(r.m, k)
			r.asking.Forget(k.String())
		}
	}
}

func every(sessionKey) bool { return true }
