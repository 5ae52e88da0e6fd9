// Package gatewaytest holds what every implementation of legacy.Sessions has to do,
// as a suite that the packages of the implementations run.
package gatewaytest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/legacy"
	"taskgate/shim"
)

// patience is how long a test waits for what has to happen.
const patience = 20 * time.Second

// MaxMessages and MaxBytes are how much the log of a session keeps in these tests.
const (
	MaxMessages = 100
	MaxBytes    = 256 << 10
)

// OpenSessions opens an empty set of at most limit sessions, and at most perOwner of one
// owner if that is not 0, that end after idle, as two or more replicas see it.
type OpenSessions func(t *testing.T, limit, perOwner int, idle time.Duration) []legacy.Sessions

// Sessions tests an implementation of legacy.Sessions.
func Sessions(t *testing.T, open OpenSessions) {
	testEach(t, func(t *testing.T, test func(*testing.T, OpenSessions)) { test(t, open) })
}

// SessionsInBubbles tests one that needs nothing from outside of this process: nobody waits for time to pass.
func SessionsInBubbles(t *testing.T, open OpenSessions) {
	testEach(t, func(t *testing.T, test func(*testing.T, OpenSessions)) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) { test(t, open) })
	})
}

// testEach runs each test of the suite.
func testEach(t *testing.T, run func(t *testing.T, test func(*testing.T, OpenSessions))) {
	for name, test := range map[string]func(*testing.T, OpenSessions){
		"Put":              testPut,
		"Together":         testTogether,
		"Idle":             testIdle,
		"Full":             testFull,
		"FullOwner":        testFullOwner,
		"Strangers":        testStrangers,
		"DeletedElsewhere": testDeletedElsewhere,
		"Logs":             testLogs,
		"LogBounds":        testLogBounds,
		"Bury":             testBury,
		"Keeper":           testKeeper,
		"Leave":            testLeave,
		"Gone":             testGone,
		"Ask":              testAsk,
		"WatchState":       testWatchState,
		"Watch":            testWatch,
		"Signal":           testSignal,
	} {
		t.Run(name, func(t *testing.T) { run(t, test) })
	}
}

// replica is one view of the sessions, with its loop.
type replica struct {
	legacy.Sessions
	t    *testing.T
	mu   sync.Mutex
	busy map[string]bool
	// ended and heard are what the loop has told: an id and a state, or a text.
	ended chan string
	heard chan string
}

// run starts the loop of each replica.
func run(t *testing.T, all []legacy.Sessions) []*replica {
	t.Helper()
	out := make([]*replica, len(all))
	for i, s := range all {
		r := &replica{Sessions: s, t: t, busy: map[string]bool{}, ended: make(chan string, 64), heard: make(chan string, 64)}
		out[i] = r
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- s.Run(ctx, r.isBusy, func(id string, state []byte) { r.ended <- id + " " + string(state) }, func(id, text, token string, at time.Time) {
				if age := time.Since(at); age < 0 || age > patience {
					t.Errorf("%s was sent %v ago", text, age)
				}
				r.heard <- id + " " + text + " " + token
			})
		}()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	return out
}

func (r *replica) isBusy(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy[id]
}

func (r *replica) setBusy(id string, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy[id] = on
}

func (r *replica) put(id string, rev int64, state string) int64 {
	r.t.Helper()
	got := must[int64](r.t)(r.Put(r.t.Context(), id, rev, []byte(state)))
	if rev == 0 {
		got = must[int64](r.t)(r.Make(r.t.Context(), id, "", "", []byte(state)))
	}
	return got
}

func (r *replica) delete(id string) {
	r.t.Helper()
	if err := r.Delete(r.t.Context(), id); err != nil {
		r.t.Fatal(err)
	}
}

// must returns a result that comes without an error.
func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (r *replica) get(id string) (string, int64) {
	r.t.Helper()
	b, rev, err := r.Get(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b), rev
}

// until asks until the answer is yes.
func until(t *testing.T, what string, yes func() bool) {
	t.Helper()
	give := time.After(patience)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !yes() {
		select {
		case <-again.C:
		case <-give:
			t.Fatalf("timed out: %s", what)
		}
	}
}

// next receives one value.
func next(t *testing.T, c <-chan string, what string) string {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("timed out: %s", what)
		return ""
	}
}

func testPut(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
	a, b := all[0], all[len(all)-1]
	if a.put("a", 1, "early") != 0 {
		t.Error("a session was changed that does not exist")
	}
	one := a.put("a", 0, "one")
	if one == 0 {
		t.Error("a session was not made")
	}
	if b.put("a", 0, "again") != 0 {
		t.Error("a session was made twice")
	}
	if state, rev := b.get("a"); rev != one || state != "one" {
		t.Errorf("there: %q %d, want %d", state, rev, one)
	}
	two := b.put("a", one, "two")
	if two == 0 || two == one {
		t.Error("a session was not changed")
	}
	if a.put("a", one, "stale") != 0 {
		t.Error("a session was changed from an old revision")
	}
	if state, rev := a.get("a"); rev != two || state != "two" {
		t.Errorf("here: %q %d, want %d", state, rev, two)
	}
	for range 2 { // deleting what is gone is no error
		a.delete("a")
	}
	if _, rev := a.get("a"); rev != 0 {
		t.Error("a deleted session exists")
	}
	if a.put("a", two, "late") != 0 {
		t.Error("a deleted session was changed")
	}
	for _, id := range []string{"unknown", "", "a{b}c", string(make([]byte, 10_000))} {
		if _, rev := a.get(id); rev != 0 {
			t.Errorf("%.20q exists", id)
		}
	}
}

// testTogether: of changes at the same time each takes effect, or is refused.
func testTogether(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
	all[0].put("a", 0, "")
	var work sync.WaitGroup
	for _, r := range all {
		work.Go(func() {
			for range 20 {
				for {
					state, rev, err := r.Get(t.Context(), "a")
					if err != nil || rev == 0 {
						t.Errorf("rev %d, %v", rev, err)
						return
					}
					next, err := r.Put(t.Context(), "a", rev, append(state[:len(state):len(state)], '+'))
					if err != nil {
						t.Error(err)
						return
					}
					if next != 0 {
						break
					}
				}
			}
		})
	}
	work.Wait()
	until(t, "every change is seen", func() bool {
		state, _ := all[0].get("a")
		return len(state) == 20*len(all)
	})
}

// testIdle: a session lives while it is used anywhere, and its end is told.
func testIdle(t *testing.T, open OpenSessions) {
	const idle = 3 * time.Second // in which a busy machine tells the store that one is in use
	all := run(t, open(t, 10, 0, idle))
	a, b := all[0], all[len(all)-1]
	b.setBusy("busy", true)
	began := time.Now()
	a.put("busy", 0, "state")
	b.get("busy")
	a.put("idle", 0, "state")
	if got := next(t, a.ended, "the end of an idle session"); got != "idle state" {
		t.Fatalf("%s has ended", got)
	}
	if time.Since(began) < idle*9/10 {
		t.Error("it ended early")
	}
	until(t, "it is gone", func() bool { _, rev := b.get("idle"); return rev == 0 })
	if _, rev := b.get("busy"); rev == 0 {
		t.Error("a busy session has ended")
	}
	b.setBusy("busy", false)
	if got := next(t, b.ended, "the end of the other"); got != "busy state" && !strings.HasPrefix(got, "idle ") {
		t.Errorf("%s has ended", got)
	}
}

// testFull: where there are as many sessions as there may be, one that nothing needs makes room for a new one: first
// the one without a request, then the one that is idle for longest, and none that is in use.
func testFull(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 3, 0, time.Hour))
	a, b := all[0], all[len(all)-1]
	a.setBusy("busy", true)
	a.put("busy", 0, "")
	a.Use(t.Context(), "busy", 0)
	b.put("task", 0, "")
	b.Use(t.Context(), "task", time.Hour)
	b.put("idle", 0, "")
	if by := a.make("next", ""); by != "" {
		t.Fatalf("while one has had no request, a new one is refused by %q", by)
	}
	until(t, "it is gone", func() bool { _, rev := b.get("idle"); return rev == 0 })
	a.setBusy("next", true)
	a.Use(t.Context(), "next", 0)
	if by := a.make("one more", "alice"); by != "max_sessions" {
		t.Fatalf("while all are needed, one more was refused by %q", by)
	}
	a.delete("task")
	if by := b.make("c", "carol"); by != "" {
		t.Fatalf("after one was ended: refused by %s", by)
	}
	for _, id := range []string{"busy", "next"} {
		if _, rev := a.get(id); rev == 0 {
			t.Error(id, "is gone")
		}
	}
}

// make makes a session of an owner, or says which bound refuses it.
func (r *replica) make(id, owner string) (refusedBy string) {
	r.t.Helper()
	rev, err := r.Make(r.t.Context(), id, owner, "", nil)
	var busy *shim.BusyError
	switch {
	case errors.As(err, &busy):
		return busy.Key
	case err != nil || rev == 0:
		r.t.Fatalf("making %s of %s: %d %v", id, owner, rev, err)
	}
	return ""
}

// testFullOwner: the sessions of an owner who has as many as one may have make room for those of that owner alone.
func testFullOwner(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 100, 2, time.Hour))
	a, b := all[0], all[len(all)-1]
	b.make("bob", "bob")
	a.make("first", "alice")
	b.make("second", "alice")
	for _, id := range []string{"first", "second"} {
		all[0].setBusy(id, true)
		all[0].Use(t.Context(), id, time.Hour)
		b.get(id)
		b.Use(t.Context(), id, time.Hour)
	}
	if by := a.make("third", "alice"); by != "max_sessions_per_owner" {
		t.Fatalf("a third was refused by %q", by)
	}
	for id, owner := range map[string]string{"x": "", "y": "", "z": "", "bob 2": "bob"} {
		if by := b.make(id, owner); by != "" {
			t.Errorf("%s of %q: refused by %s", id, owner, by)
		}
	}
	b.delete("second")
	if by := a.make("fourth", "alice"); by != "" {
		t.Errorf("after one has ended: refused by %s", by)
	}
	if by := a.make("fifth", "alice"); by != "" {
		t.Errorf("while one has had no request: refused by %s", by)
	}
	until(t, "it is gone", func() bool { _, rev := a.get("fourth"); return rev == 0 })
	if _, rev := a.get("bob"); rev == 0 {
		t.Error("that of another owner is gone")
	}
}

// testStrangers: those without an owner have one share, and each address half of it. Their sessions make room for
// their own alone.
func testStrangers(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 8, 0, time.Hour))
	a, b := all[0], all[len(all)-1]
	a.make("alice", "alice")
	for i := range 12 {
		if by := all[i%len(all)].makeFrom(fmt.Sprint("near", i), "192.0.2.1"); by != "" {
			t.Fatalf("session %d of an address: refused by %s", i, by)
		}
	}
	if by := b.makeFrom("far", "192.0.2.2"); by != "" {
		t.Fatalf("another address: refused by %s", by)
	}
	until(t, "an address has half", func() bool {
		n := 0
		for i := range 12 {
			if _, rev := a.get(fmt.Sprint("near", i)); rev != 0 {
				n++
			}
		}
		return n == 4
	})
	for _, id := range []string{"alice", "far"} {
		if _, rev := b.get(id); rev == 0 {
			t.Error(id, "made room for strangers")
		}
	}
}

// makeFrom makes a session of nobody, from an address.
func (r *replica) makeFrom(id, address string) (refusedBy string) {
	r.t.Helper()
	_, err := r.Make(r.t.Context(), id, "", address, nil)
	if busy, ok := errors.AsType[*shim.BusyError](err); ok {
		return busy.Key
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return ""
}

// testDeletedElsewhere: every replica that knows a session hears of its end.
func testDeletedElsewhere(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
	a, b := all[0], all[1]
	a.put("a", 0, "one")
	b.get("a")
	b.delete("a")
	if got := next(t, a.ended, "the end on the other replica"); got != "a one" {
		t.Errorf("%s has ended", got)
	}
	if _, rev := a.get("a"); rev != 0 {
		t.Error("it is still there")
	}
	if len(b.ended) > 0 {
		t.Error("its own replica was told too")
	}
}

// testSignal: a signal reaches whoever knows the session.
func testSignal(t *testing.T, open OpenSessions) {
	all := run(t, open(t, 10, 0, time.Hour))
	a, b := all[0], all[1]
	a.put("a", 0, "")
	b.get("a")
	for i, text := range []string{"some words", `cancel "\u00e9 1"`} {
		token := []string{"", "sealed"}[i]
		if err := b.Signal(t.Context(), "a", text, token); err != nil {
			t.Fatal(err)
		}
		for {
			if got := next(t, a.heard, "the signal"); got == "a "+text+" "+token {
				break
			}
		}
	}
}
