package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskgate/gateway/config"
)

// faked is a part whose state a test decides.
type faked struct {
	asked atomic.Int64
	err   atomic.Pointer[error]
	hangs atomic.Bool
}

func (f *faked) check(ctx context.Context) error {
	f.asked.Add(1)
	if f.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *faked) fail(text string) {
	if text == "" {
		f.err.Store(nil)
		return
	}
	err := errors.New(text)
	f.err.Store(&err)
}

// fakedReadiness is a readiness whose parts are a test's.
type fakedReadiness struct {
	*readiness
	store, a, b faked
	draining    atomic.Bool
}

func newFakedReadiness() *fakedReadiness {
	f := &fakedReadiness{}
	f.readiness = &readiness{
		draining: f.draining.Load,
		store:    &part{check: f.store.check, kind: "memory"},
	}
	one := func(check func(context.Context) error) *offered {
		return &offered{config: &config.Upstream{}, reach: &part{check: check}}
	}
	served := upstreams{"a": one(f.a.check), "b": one(f.b.check)}
	f.upstreams = func() upstreams { return served }
	return f
}

// probe asks as a prober does, once everything that was known is too old.
func (f *fakedReadiness) probe(t *testing.T, query string) (int, report) {
	t.Helper()
	f.readiness.store.at = time.Time{}
	for _, one := range f.upstreams() {
		one.reach.at = time.Time{}
	}
	return probe(t, f, query)
}

func probe(t *testing.T, h http.Handler, query string) (int, report) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/readyz"+query, nil))
	var r report
	if w.Code != http.StatusBadRequest {
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s (%v) %v", w.Body, err, w.Header())
		}
	}
	return w.Code, r
}

// TestReady: which part decides what.
func TestReady(t *testing.T) {
	for name, c := range map[string]struct {
		store, a, b string
		drains      bool
		query       string
		status      int
	}{
		"all there":                {status: 200},
		"one upstream down":        {a: "refused", status: 200},
		"no upstream":              {a: "refused", b: "refused", status: 503},
		"no upstream, excluded":    {a: "refused", b: "refused", query: "?exclude=upstreams", status: 200},
		"no store":                 {store: "refused", status: 503},
		"no store, excluded":       {store: "refused", query: "?exclude=store", status: 200},
		"nothing":                  {store: "refused", a: "refused", b: "refused", status: 503},
		"nothing, one excluded":    {store: "refused", a: "refused", b: "refused", query: "?exclude=store", status: 503},
		"nothing, both excluded":   {store: "refused", a: "refused", b: "refused", query: "?exclude=store&exclude=upstreams", status: 200},
		"draining":                 {drains: true, status: 503},
		"draining is not excluded": {drains: true, query: "?exclude=store&exclude=upstreams", status: 503},
		"no such part":             {query: "?exclude=redis", status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakedReadiness()
			f.store.fail(c.store)
			f.a.fail(c.a)
			f.b.fail(c.b)
			f.draining.Store(c.drains)
			status, got := f.probe(t, c.query)
			if status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			if status == http.StatusBadRequest {
				return
			}
			want := report{Ready: c.status == 200, Draining: c.drains, Store: state{Kind: "memory", Reachable: c.store == "", Error: c.store},
				Upstreams: map[string]state{"a": {Reachable: c.a == "", Error: c.a}, "b": {Reachable: c.b == "", Error: c.b}}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestReadyAsksSeldom: however many probes come, a part is asked once in a while,
// and what it says then holds that long. Draining shows at once.
func TestReadyAsksSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakedReadiness()
		many := func() {
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() { probe(t, f, "") })
			}
			all.Wait()
		}
		many()
		f.store.fail("gone")
		many()
		if status, _ := probe(t, f, ""); status != 200 || f.store.asked.Load() != 1 || f.a.asked.Load() != 1 {
			t.Errorf("%d; the store was asked %d times, a server %d times", status, f.store.asked.Load(), f.a.asked.Load())
		}
		f.draining.Store(true)
		if status, got := probe(t, f, ""); status != 503 || !got.Draining {
			t.Errorf("draining: %d %+v", status, got)
		}
		f.draining.Store(false)
		pause := time.NewTimer(checkAge)
		<-pause.C
		many()
		if status, _ := probe(t, f, ""); status != 503 || f.store.asked.Load() != 2 {
			t.Errorf("later: %d; the store was asked %d times", status, f.store.asked.Load())
		}
	})
}

// TestReadyDoesNotHang: parts that do not answer are asked together, and given up
// before the prober gives up.
func TestReadyDoesNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakedReadiness()
		for _, p := range []*faked{&f.store, &f.a, &f.b} {
			p.hangs.Store(true)
		}
		begin := time.Now()
		status, got := probe(t, f, "")
		if took := time.Since(begin); took != checkTimeout || status != 503 {
			t.Errorf("%d after %s", status, took)
		}
		if want := "no sign of life within 800ms"; got.Store.Error != want || got.Upstreams["a"].Error != want {
			t.Errorf("%+v", got)
		}
	})
}

// TestAdminHandler: what there is, by which methods and names.
func TestAdminHandler(t *testing.T) {
	f := newFakedReadiness()
	f.store.fail("gone")
	for name, c := range map[string]struct {
		method, path, host string
		anywhere           bool // the listener is not on loopback
		status             int
	}{
		"alive whatever is wrong": {"GET", "/healthz", "127.0.0.1:9090", false, 200},
		"by HEAD":                 {"HEAD", "/healthz", "localhost:9090", false, 200},
		"without port":            {"GET", "/healthz", "localhost", false, 200},
		"IPv6":                    {"GET", "/healthz", "[::1]:9090", false, 200},
		"of HTTP/1.0":             {"GET", "/healthz", "", false, 200},
		"ready":                   {"GET", "/readyz", "127.0.0.1:9090", false, 503},
		"POST":                    {"POST", "/readyz", "127.0.0.1:9090", false, 405},
		"elsewhere":               {"GET", "/mcp", "127.0.0.1:9090", false, 404},
		"a page's own name":       {"GET", "/readyz", "evil.example:9090", false, 403},
		"a pod's address":         {"GET", "/healthz", "10.1.2.3:9090", true, 200},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(c.method, c.path, nil)
			r.Host = c.host
			w := httptest.NewRecorder()
			adminHandler(f.readiness, http.NotFoundHandler(), nil, http.NotFoundHandler(), !c.anywhere).ServeHTTP(w, r)
			if w.Code != c.status {
				t.Errorf("status %d: %s", w.Code, w.Body)
			}
		})
	}
}
