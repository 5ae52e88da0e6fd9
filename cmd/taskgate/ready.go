package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// checkTimeout is how long a part may take to answer. It is below the second after which
	// Kubernetes gives up a probe.
	checkTimeout = 800 * time.Millisecond
	// checkAge is how long a probe believes the last answer: it bounds how often probes make the
	// store and the servers answer.
	checkAge = 2 * time.Second
	// reportAge is how long a report believes it.
	reportAge = 10 * time.Second
)

// readiness says whether this process should get requests. It should unless
//
//   - it drains: it refuses new calls;
//   - the store is out of its reach: it could neither make nor read tasks. Other
//     requests would still work, but a replica that reaches the store serves more;
//   - all its upstreams are out of its reach. The clients of any reachable upstream
//     need this process, so a single server that is down is only reported.
//
// A probe may leave the store or the upstreams out of the decision (?exclude=). This is for deployments in
// which all replicas share a fate, and a process without its Redis is better than none.
type readiness struct {
	draining  func() bool
	store     *part
	upstreams func() upstreams // those that are removed do not count
}

// newReadiness makes the readiness of this process; ctx ends when the drain begins.
func (s *server) newReadiness(ctx context.Context) *readiness {
	return &readiness{
		draining:  func() bool { return ctx.Err() != nil },
		store:     &part{check: s.store.Ping, kind: storeKind(s.config)},
		upstreams: s.served,
	}
}

// report is the body of /readyz.
type report struct {
	Ready     bool             `json:"ready"`
	Draining  bool             `json:"draining"`
	Store     state            `json:"store"`
	Upstreams map[string]state `json:"upstreams"`
}

// state is what is known of one part.
type state struct {
	Kind      string `json:"kind,omitempty"` // of the store: memory, redis, or file and its path
	Reachable bool   `json:"reachable"`
	Error     string `json:"error,omitempty"`
}

// The parts that a probe may exclude.
const (
	partStore     = "store"
	partUpstreams = "upstreams"
)

// askParts asks all parts at the same time, except those that were asked within age.
func (r *readiness) askParts(age time.Duration, exclude []string) report {
	out := report{Draining: r.draining(), Upstreams: map[string]state{}}
	var all sync.WaitGroup
	var mu sync.Mutex
	all.Go(func() { out.Store = r.store.stateNow(age) })
	for name, one := range r.upstreams() {
		if one.config.Removed {
			continue
		}
		all.Go(func() {
			s := one.reach.stateNow(age)
			mu.Lock()
			defer mu.Unlock()
			out.Upstreams[name] = s
		})
	}
	all.Wait()
	reached := slices.Contains(exclude, partUpstreams)
	for _, s := range out.Upstreams {
		reached = reached || s.Reachable
	}
	out.Ready = !out.Draining && reached && (out.Store.Reachable || slices.Contains(exclude, partStore))
	return out
}

// ServeHTTP answers /readyz: 200 or 503, and why.
func (r *readiness) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	exclude := q.URL.Query()["exclude"]
	for _, name := range exclude {
		if name != partStore && name != partUpstreams {
			http.Error(w, fmt.Sprintf("exclude takes %s and %s", partStore, partUpstreams), http.StatusBadRequest)
			return
		}
	}
	found := r.askParts(checkAge, exclude)
	status := http.StatusOK
	if !found.Ready {
		status = http.StatusServiceUnavailable
	}
	writeStatus(w, status, found)
}

// writeStatus answers with a JSON body that must not be cached.
func writeStatus(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client has gone, or reads the status only
}

// part is something that this process depends on.
type part struct {
	check func(context.Context) error
	kind  string

	mu  sync.Mutex // held while the part is asked: callers that come meanwhile share the answer
	at  time.Time
	err error
}

// stateNow asks the part, unless it was asked within age.
func (p *part) stateNow(age time.Duration) state {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() || time.Since(p.at) >= age {
		p.err = p.askPart()
		p.at = time.Now()
	}
	if p.err != nil {
		return state{Kind: p.kind, Error: p.err.Error()}
	}
	return state{Kind: p.kind, Reachable: true}
}

// askPart has its own timeout, instead of the request's, because other probes share the answer.
func (p *part) askPart() error {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	err := p.check(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no sign of life within %s", checkTimeout)
	}
	return err
}
