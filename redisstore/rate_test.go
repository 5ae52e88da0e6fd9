package redisstore

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/patience"
	"taskgate/internal/redistest"
	"taskgate/shim"
)

// takes wants a rate to answer with this wait.
func takes(t *testing.T, r *Rate, caller string, n int, want time.Duration) {
	t.Helper()
	wait, err := r.Take(t.Context(), caller, n)
	must(t, err)
	same(t, want, wait)
}

// A caller has its burst, then its rate, and its burst again after a pause.
func TestRate(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		const beat = 100 * time.Millisecond
		r := NewRate(s, 10, 3)
		for range 3 {
			takes(t, r, "ann", 1, 0)
		}
		takes(t, r, "ann", 1, beat)
		takes(t, r, "ann", 1, beat) // what is refused is not counted
		takes(t, r, "bob", 3, 0)
		takes(t, r, "bob", 2, 2*beat)
		pass(beat)
		takes(t, r, "ann", 1, 0)
		takes(t, r, "ann", 1, beat)
		pass(time.Minute)
		takes(t, r, "ann", 3, 0)
		takes(t, r, "ann", 1, beat)
		pass(time.Minute)
		takes(t, r, "ann", 4, beat) // more than a burst is never in time
		if wait, err := r.Take(t.Context(), "ann", 3); wait != 0 || err != nil {
			t.Errorf("a burst after that: %v, %v", wait, err)
		}
	})
}

// What is kept of a caller is gone once it has its burst again, and names nobody.
func TestRateForgets(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		takes(t, NewRate(s, 10, 30), "ann@example.com", 20, 0)
		all, err := s.client.Keys(t.Context(), "*:rate:*").Result()
		must(t, err)
		if len(all) != 1 || strings.Contains(all[0], "ann") {
			t.Errorf("keys: %v", all)
		}
		pass(2*time.Second + s.opts.slack)
		all, err = s.client.Keys(t.Context(), "*:rate:*").Result()
		must(t, err)
		same(t, 0, len(all))
	})
}

// A Redis whose clock was ahead keeps nobody out for longer than a burst takes.
func TestRateAfterAClockThatWasAhead(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		r := NewRate(s, 10, 3)
		takes(t, r, "ann", 1, 0)
		must(t, s.client.Set(t.Context(), s.keys.rate("ann"), time.Now().Add(time.Hour).UnixMicro(), time.Hour).Err())
		takes(t, r, "ann", 1, 100*time.Millisecond)
		pass(100 * time.Millisecond)
		takes(t, r, "ann", 1, 0)
	})
}

// Over a Redis that cannot be reached nothing is known, and that at once.
func TestRateWithoutRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := openTest(t, redis.URL(), testOptions())
	redis.Stop()
	if _, err := NewRate(s, 10, 3).Take(t.Context(), "ann", 1); err == nil {
		t.Error("it is known all the same")
	} else {
		is(t, err, shim.ErrUnavailable)
	}
}

// A request waits for a Redis that is frozen for as long as its patience lasts, and not at all
// once that is known to be away.
func TestRateOfAFrozenRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := openTest(t, redis.URL(), hasty())
	usable(t, s)
	redis.Freeze()
	t.Cleanup(redis.Thaw)
	r := NewRate(s, 10, 3)
	_, err := r.Take(patience.With(t.Context(), 100*time.Millisecond), "ann", 1)
	is(t, err, shim.ErrUnavailable)
	_, err = r.Take(patience.With(t.Context(), time.Hour), "ann", 1)
	is(t, err, errAway)
}

// A caller that sends far too much is counted with few scripts, and what it sends at once does
// not hold up others.
func TestRateOfAFlood(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := openTest(t, redis.URL(), testOptions())
	usable(t, s)
	r := NewRate(s, 10, 3)
	const requests = 3000
	before := commands(redis, "evalsha")
	var allowed atomic.Int64
	var flood sync.WaitGroup
	for range requests {
		flood.Go(func() {
			wait, err := r.Take(t.Context(), "ann", 1)
			if err != nil {
				t.Error(err)
			} else if wait == 0 {
				allowed.Add(1)
			}
		})
	}
	takes(t, r, "bob", 1, 0)
	flood.Wait()
	if n := allowed.Load(); n < 3 || n > requests/10 {
		t.Errorf("%d were allowed", n)
	}
	if n := commands(redis, "evalsha") - before; n > requests/10 {
		t.Errorf("%d scripts for %d requests", n, requests)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.callers["ann"]; len(r.callers) > 2 || c != nil && len(c.waiting) > 0 {
		t.Errorf("known of callers afterwards: %v", r.callers)
	}
}

// While Redis is asked about a caller, no more requests wait for the reply than could be let in.
func TestRateRefusesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		const beat = 100 * time.Millisecond
		r := NewRate(s, 10, 3)
		asked := &caller{asking: true}
		r.callers["ann"] = asked
		join := func(n int, want time.Duration) {
			t.Helper()
			same(t, want, r.join("ann", &take{n: n}))
		}
		for range 3 {
			join(1, 0)
		}
		join(1, beat)
		join(2, 2*beat)
		pass(beat)
		join(1, 0)
		join(1, beat)
		same(t, 4, len(asked.waiting))
		pass(time.Minute)
		join(4, beat)
		join(3, 0)
	})
}

// A caller is forgotten when it has its whole burst again.
func TestRateForgetsCallers(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		r := NewRate(s, 10, 1)
		takes(t, r, "ann", 1, 0)
		takes(t, r, "ann", 1, 100*time.Millisecond)
		takes(t, r, "bob", 1, 0)
		pass(time.Second)
		r.mu.Lock()
		defer r.mu.Unlock()
		same(t, 0, len(r.callers))
	})
}

// Several replicas allow as much as one, over a Redis and over a cluster.
func TestRateOverReplicas(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"redis":   redistest.Start(t).URL(),
		"cluster": redistest.ClusterURL(redistest.Cluster(t, 3)),
	} {
		t.Run(name, func(t *testing.T) {
			const replicas, perSecond, burst, each = 3, 50, 40, 200
			o := testOptions()
			var rates []*Rate
			for range replicas {
				s := openTest(t, url, o)
				usable(t, s)
				rates = append(rates, NewRate(s, perSecond, burst))
			}
			var allowed atomic.Int64
			var work sync.WaitGroup
			begin := time.Now()
			for _, r := range rates {
				work.Go(func() {
					for range each {
						wait, err := r.Take(context.Background(), "ann", 1)
						if err != nil {
							t.Error(err)
						} else if wait == 0 {
							allowed.Add(1)
						}
					}
				})
			}
			work.Wait()
			most := burst + int64(time.Since(begin).Seconds()*perSecond) + 1
			if n := allowed.Load(); n < burst || n > most {
				t.Errorf("%d of %d were allowed, want %d to %d", n, replicas*each, burst, most)
			}
		})
	}
}
