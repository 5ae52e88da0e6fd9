package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
)

// endings collects the ids that a Run reports.
type endings struct {
	mu  sync.Mutex
	ids []string
}

func (e *endings) add(id string) {
	e.mu.Lock()
	e.ids = append(e.ids, id)
	e.mu.Unlock()
}

func (e *endings) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprint(e.ids)
}

// runSessions runs the loop of a store until the test ends.
func runSessions(t *testing.T, s Sessions, busy func(string) bool) *endings {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	e, done := &endings{}, make(chan error, 1)
	go func() { done <- s.Run(ctx, busy, e.add, func(string, string) {}) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return e
}

// inUse is which sessions a test says are busy.
type inUse struct{ m sync.Map }

func (u *inUse) set(id string, on bool) { u.m.Store(id, on) }

func (u *inUse) busy(id string) bool {
	on, _ := u.m.Load(id)
	return on == true
}

func exists(t *testing.T, s Sessions, id string) bool {
	t.Helper()
	_, rev, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return rev != 0
}

func TestLocalSessionsPut(t *testing.T) {
	l, ctx := NewLocalSessions(10, time.Hour), t.Context()
	put := func(id string, rev int64, state string) int64 {
		t.Helper()
		got, err := l.Put(ctx, id, rev, []byte(state))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if put("a", 1, "early") != 0 {
		t.Error("a session was changed that does not exist")
	}
	if put("a", 0, "one") != 1 {
		t.Error("a session was not made")
	}
	if put("a", 0, "again") != 0 {
		t.Error("a session was made twice")
	}
	if put("a", 1, "two") != 2 {
		t.Error("a session was not changed")
	}
	if put("a", 1, "stale") != 0 {
		t.Error("a session was changed from an old revision")
	}
	if b, rev, err := l.Get(ctx, "a"); err != nil || rev != 2 || string(b) != "two" {
		t.Errorf("Get: %q %d %v", b, rev, err)
	}
	for range 2 { // deleting what is gone is no error
		if err := l.Delete(ctx, "a"); err != nil {
			t.Error(err)
		}
	}
	if exists(t, l, "a") {
		t.Error("a deleted session exists")
	}
	if put("a", 2, "late") != 0 {
		t.Error("a deleted session was changed")
	}
}

func TestLocalSessionsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLocalSessions(10, time.Hour)
		var use inUse
		use.set("busy", true)
		ended := runSessions(t, l, use.busy)
		for _, id := range []string{"idle", "busy", "used"} {
			if _, err := l.Put(t.Context(), id, 0, nil); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(30 * time.Minute)
		if !exists(t, l, "used") {
			t.Error("a session ended early")
		}
		<-time.After(30 * time.Minute)
		synctest.Wait()
		if got := ended.String(); got != "[idle]" {
			t.Errorf("ended %s", got)
		}
		<-time.After(30 * time.Minute)
		synctest.Wait()
		if got := ended.String(); got != "[idle used]" {
			t.Errorf("ended %s", got)
		}
		use.set("busy", false) // its idle time began when it was last seen busy
		<-time.After(30 * time.Minute)
		synctest.Wait()
		if got := ended.String(); got != "[idle used busy]" {
			t.Errorf("ended %s", got)
		}
	})
}

func TestLocalSessionsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLocalSessions(3, time.Hour)
		var use inUse
		use.set("a", true)
		ended := runSessions(t, l, use.busy)
		for _, id := range []string{"a", "b", "c"} {
			if _, err := l.Put(t.Context(), id, 0, nil); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Minute)
		}
		exists(t, l, "b") // used last
		if rev, err := l.Put(t.Context(), "d", 0, nil); rev != 1 || err != nil {
			t.Errorf("Put: %d %v", rev, err)
		}
		if got := ended.String(); got != "[c]" { // a is busy, b was used since
			t.Errorf("ended %s", got)
		}
		use.set("b", true)
		use.set("d", true)
		_, err := l.Put(t.Context(), "e", 0, nil)
		if full := (*shim.BusyError)(nil); !errors.As(err, &full) {
			t.Errorf("a full store answers %v", err)
		}
		use.set("d", false)
		if rev, err := l.Put(t.Context(), "e", 0, nil); rev != 1 || err != nil {
			t.Errorf("Put: %d %v", rev, err)
		}
		if got := ended.String(); got != "[c d]" {
			t.Errorf("ended %s", got)
		}
	})
}

// Without Run nothing is busy, and a full store still makes room.
func TestLocalSessionsWithoutRun(t *testing.T) {
	l := NewLocalSessions(1, time.Hour)
	for _, id := range []string{"a", "b"} {
		if rev, err := l.Put(t.Context(), id, 0, nil); rev != 1 || err != nil {
			t.Errorf("Put %s: %d %v", id, rev, err)
		}
	}
	if exists(t, l, "a") {
		t.Error("no room was made")
	}
}
