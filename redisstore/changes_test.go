package redisstore

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// changed notes a change of a session as scripts do, without its event.
func changed(t *testing.T, store *Store, id string) {
	t.Helper()
	z := redis.Z{Score: float64(time.Now().UnixMilli() * 1024), Member: id}
	must(t, store.client.ZAdd(t.Context(), changesOf(store.keys, id), z).Err())
}

// What a replica asks the store for sessions on which nothing happens is the same for ten of them and for a hundred.
func TestQuietSessionsCostNoCommands(t *testing.T) {
	bubble(t, func(t *testing.T, store *Store) {
		s := sessionsOf(store, 1000, 24*time.Hour)
		defer runSessions(t, s, true, nil)()
		asked, made := map[int]int{}, 0
		for _, n := range []int{10, 100} {
			for ; made < n; made++ {
				id := fmt.Sprint(made)
				makeSession(t, s, id)
				defer s.Watch(id, func() {})()
			}
			pass(10 * time.Minute)
			before := store.embedded.server.CommandCount()
			pass(10 * time.Minute)
			asked[n] = store.embedded.server.CommandCount() - before
		}
		if asked[100] > asked[10]+10 || asked[10] > 1000 { // a tick more or less
			t.Errorf("in ten minutes it took %d commands for ten sessions, and %d for a hundred", asked[10], asked[100])
		}
	})
}

// Who watches a session hears of a change whose event was lost, within half a minute.
func TestWatchHearsOfLostEvents(t *testing.T) {
	bubble(t, func(t *testing.T, store *Store) {
		s := sessionsOf(store, 10, time.Hour)
		defer runSessions(t, s, true, nil)()
		makeSession(t, s, "a")
		woken := make(chan struct{}, 10)
		defer s.Watch("a", func() { woken <- struct{}{} })()
		<-woken // it has begun
		pass(time.Minute)
		same(t, 0, len(woken))
		changed(t, store, "a")
		pass(signalsCheck)
		same(t, 1, len(woken))
		pass(10 * time.Minute)
		same(t, 1, len(woken))
	})
}

// A replica that could not look for longer than changes are kept looks at all sessions that it knows.
func TestChangesThatAreKeptNoMore(t *testing.T) {
	bubble(t, func(t *testing.T, store *Store) {
		s := sessionsOf(store, 10, time.Hour)
		seen := changesSeen{sessions: s}
		makeSession(t, s, "a")
		var woken atomic.Int64
		defer s.Watch("a", func() { woken.Add(1) })()
		pass(time.Second)
		seen.lookForChanges(t.Context())
		same(t, int64(1), woken.Load())
		pass(changesKept)
		seen.lookForChanges(t.Context())
		same(t, int64(2), woken.Load())
	})
}
