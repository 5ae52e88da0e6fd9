package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/gatewaytest"
	"taskgate/gateway/legacy"
	"taskgate/internal/redistest"
	"taskgate/shim"
	"taskgate/shim/node"
	"taskgate/shim/shimtest"

	"github.com/redis/go-redis/v9"
)

var _ legacy.Sessions = (*Sessions)(nil)

// sessionsOver opens two replicas over one database.
func sessionsOver(open shimtest.OpenStore) gatewaytest.OpenSessions {
	return func(t *testing.T, limit, perOwner int, idle time.Duration) []legacy.Sessions {
		store := open(t)
		replica := func(name shim.Replica) legacy.Sessions {
			s := store().(*Store)
			heart := node.NewHeart(s, name, 2*time.Second, s.log)
			sessions := s.Sessions(heart, limit, idle).PerOwner(perOwner)
			return beatingSessions{sessions.Keep(gatewaytest.MaxMessages, gatewaytest.MaxBytes, logAfterEnd), heart}
		}
		return []legacy.Sessions{replica("a"), replica("b")}
	}
}

// beatingSessions are those of a replica whose heart beats while they run.
type beatingSessions struct {
	*Sessions
	heart *node.Heart
}

func (s beatingSessions) Run(ctx context.Context, busy func(id string) bool, ended func(id string, state []byte), signal func(id, text, token string, at time.Time)) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(func() { s.heart.Run(ctx) })
	return s.Sessions.Run(ctx, busy, ended, signal)
}

func TestSessionsFile(t *testing.T) {
	t.Parallel()
	gatewaytest.SessionsInBubbles(t, sessionsOver(inFolders(t)))
}

func TestSessionsRedis(t *testing.T) {
	t.Parallel()
	gatewaytest.Sessions(t, sessionsOver(over(redistest.Start(t).URL())))
}

func TestSessionsRedisThatFreezes(t *testing.T) {
	t.Parallel()
	gatewaytest.Sessions(t, sessionsOver(freezing(t)))
}

func TestSessionsCluster(t *testing.T) {
	t.Parallel()
	gatewaytest.Sessions(t, sessionsOver(over(redistest.ClusterURL(redistest.Cluster(t, 3)))))
}

// An outage ends no session that is known, and says of no other that it is gone.
func TestSessionsOutage(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	o := testOptions()
	o.RetryFor = 10 * time.Millisecond
	store := openTest(t, redis.URL(), o)
	s := sessionsOf(store, 10, time.Hour)
	ctx := context.Background()
	revs := map[string]int64{}
	for _, id := range []string{"a", "b"} {
		rev, err := s.Make(ctx, id, "", "", []byte("state"))
		must(t, err)
		revs[id] = rev
	}
	s.forgetSession("b")
	redis.Kill()
	s.doubtState("a") // what was read a moment ago would do anyway
	if state, rev, err := s.Get(ctx, "a"); err != nil || rev != revs["a"] || string(state) != "state" {
		t.Errorf("known: %q %d %v", state, rev, err)
	}
	if _, _, err := s.Get(ctx, "b"); !errors.Is(err, shim.ErrUnavailable) {
		t.Errorf("not known: %v", err)
	}
	if _, err := s.Put(ctx, "a", revs["a"], nil); !errors.Is(err, shim.ErrUnavailable) {
		t.Errorf("change: %v", err)
	}
	redis.Restart()
	usable(t, store)
	if _, rev, err := s.Get(ctx, "b"); err != nil || rev != revs["b"] {
		t.Errorf("afterwards: %d %v", rev, err)
	}
}

// A session that has ended is unknown here at once, also where it was read on the way to its end.
func TestSessionReadWhileItEnds(t *testing.T) {
	bubble(t, func(t *testing.T, store *Store) {
		s := sessionsOf(store, 10, time.Hour)
		_, err := s.Make(t.Context(), "a", "", "", []byte("state"))
		must(t, err)
		reads := 0
		store.client.AddHook(&around{script: sessionEndScript, before: func() error {
			reads++
			_, rev, err := s.Get(t.Context(), "a")
			if rev == 0 {
				t.Error("it ended before the script that ends it")
			}
			return err
		}})
		must(t, s.Delete(t.Context(), "a"))
		_, rev, err := s.Get(t.Context(), "a")
		must(t, err)
		if rev != 0 || reads == 0 {
			t.Errorf("after its end: %d, read %d times before", rev, reads)
		}
	})
}

// A lost reply does not make a repeat fail.
func TestSessionsRepeat(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr)
	s := sessionsOf(openTest(t, proxy.URL(), testOptions()), 10, time.Hour)
	ctx := context.Background()
	proxy.Next(redistest.DropReply, "evalsha")
	one, err := s.Make(ctx, "a", "", "", []byte("one"))
	if one == 0 || err != nil {
		t.Errorf("made: %d %v", one, err)
	}
	proxy.Next(redistest.DropReply, "evalsha")
	if rev, err := s.Put(ctx, "a", one, []byte("two")); rev == 0 || rev == one || err != nil {
		t.Errorf("changed: %d %v", rev, err)
	}
	proxy.Next(redistest.DropReply, "evalsha")
	if err := s.Delete(ctx, "a"); err != nil {
		t.Error(err)
	}
}

// Redis went back to an older state, and went on from there with another change. Whoever knew the
// newer state learns what is there now, and loses no change of others.
func TestSessionsAfterRedisWentBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := testOptions()
	here, there := sessionsOf(openTest(t, server.URL(), o), 10, time.Hour), sessionsOf(openTest(t, server.URL(), o), 10, time.Hour)
	ctx := t.Context()
	put := func(c *Sessions, rev int64, state string) int64 {
		t.Helper()
		next, err := c.Put(ctx, "a", rev, []byte(state))
		must(t, err)
		return next
	}
	one, err := here.Make(ctx, "a", "", "", []byte("one"))
	must(t, err)
	key := here.store.keys.session("a")
	before := server.Do("dump", key)
	two := put(here, one, "two")
	three := put(here, two, "three")
	server.Do("restore", key, "60000", before, "replace")
	other := put(there, one, "other")
	if other == 0 || other == two {
		t.Fatalf("the change of another replica has revision %d, as had one that is lost", other)
	}
	for _, rev := range []int64{two, three} {
		if next := put(here, rev, "late"); next != 0 {
			t.Errorf("a change based on what was lost has revision %d", next)
		}
		if state, rev, err := here.Get(ctx, "a"); string(state) != "other" || rev != other || err != nil {
			t.Errorf("known here: %s %d, %v", state, rev, err)
		}
	}
	if put(here, other, "last") == 0 {
		t.Error("no further change can be made")
	}
}

// Nothing of sessions stays behind, and everything is under the prefix.
func TestSessionsKeys(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o := testOptions()
	s := sessionsOf(openTest(t, server.URL(), o), 10, time.Hour)
	ctx := context.Background()
	_, err := s.Make(ctx, "a", "", "", []byte("one"))
	must(t, err)
	must(t, s.Signal(ctx, "a", "signal", ""))
	all := server.Keys("*")
	if len(all) != 5 {
		t.Errorf("keys %v", all)
	}
	for _, key := range all {
		if !strings.HasPrefix(key, o.Prefix+":") {
			t.Errorf("key %s", key)
		}
	}
	must(t, s.Delete(ctx, "a"))
	changes := changesOf(s.store.keys, "a")
	same(t, []string{changes}, server.Keys("*"))
	if left := s.store.client.PTTL(ctx, changes).Val(); left <= 0 || left > 10*time.Minute {
		t.Errorf("the set of changes goes in %s", left)
	}
}

// The log of a session lives for as long as the session is in use, however quiet it is.
func TestLogOfASessionInUse(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := sessionsOf(openTest(t, server.URL(), testOptions()), 10, 8*time.Second) // a tick each second
	makeSession(t, s, "a", "x")
	_, err := s.Append(t.Context(), "a", "x", []byte("one"))
	must(t, err)
	stop := runSessions(t, s, true, nil)
	for range 3 {
		for _, key := range s.store.keys.log("a") {
			server.Do("persist", key) // so that it shows when its expiry is put off
		}
		eventually(t, "the expiry of the log is put off", func() bool {
			kept := true
			for _, key := range s.store.keys.log("a") {
				left, _ := server.Do("pttl", key).(int64)
				kept = kept && left > 0
			}
			return kept
		})
	}
	stop()
}

// slowPipelines has each pipeline wait on its way to the store, but for those that greet it: that is
// done under a lock, and no time passes in a bubble while somebody waits for one.
type slowPipelines struct {
	redis.Hook
	by time.Duration
}

func (s slowPipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (s slowPipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (s slowPipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if name := cmds[0].Name(); name != "hello" && name != "client" {
			pass(s.by)
		}
		return next(ctx, cmds)
	}
}

// However long the store takes to answer, a signal is not taken for older than it is: it may
// cancel a request that began just before it.
func TestSignalsAreNotAged(t *testing.T) {
	bubble(t, func(t *testing.T, store *Store) {
		store.client.AddHook(slowPipelines{by: 300 * time.Millisecond})
		s := sessionsOf(store, 10, time.Hour)
		makeSession(t, s, "a")
		signals := make(chan time.Time, 10)
		stop := runSessions(t, s, true, func(_ string, at time.Time) { signals <- at })
		pass(time.Second)
		left := time.Now()
		must(t, s.Signal(t.Context(), "a", "cancel 1", ""))
		if at := <-signals; at.Before(left) || at.After(time.Now()) {
			t.Errorf("left at %s, and read at %s as one of %s", left, time.Now(), at)
		}
		stop()
	})
}

// What other replicas say to a session in use is heard within half a minute, also where
// nothing tells that they have said it: a signal, and that the session is over.
func TestSessionsLostEvents(t *testing.T) {
	bubble(t, func(t *testing.T, store *Store) {
		s := sessionsOf(store, 10, time.Hour)
		for _, id := range []string{"a", "b", "idle"} {
			_, err := s.Make(t.Context(), id, "", "", nil)
			must(t, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		signals, over, done := make(chan string, 10), make(chan string, 10), make(chan error, 1)
		go func() {
			done <- s.Run(ctx, func(id string) bool { return id != "idle" },
				func(id string, _ []byte) { over <- id }, func(id, text, _ string, _ time.Time) { signals <- id + " " + text })
		}()
		pass(3*time.Minute + time.Second)

		must(t, store.client.RPush(ctx, s.store.keys.signals("a"), "x cancel 1").Err())
		must(t, store.client.Del(ctx, s.store.keys.session("b")).Err())
		for _, id := range []string{"a", "b"} {
			changed(t, store, id)
		}
		late := time.After(signalsCheck)
		for range 2 {
			select {
			case signal := <-signals:
				same(t, "a cancel 1", signal)
			case id := <-over:
				same(t, "b", id)
			case <-late:
				t.Fatal("not heard of")
			}
		}
		for range 2 { // each time that something is said, once
			must(t, s.Signal(ctx, "a", "stream", ""))
		}
		pass(2 * signalsCheck)
		same(t, "a stream", <-signals)
		same(t, "a stream", <-signals)
		same(t, 0, len(signals))
		stop()
		must(t, <-done)
	})
}

// An outage that is longer than a heartbeat lasts loses no stream: the replica that keeps it could not beat, and
// beats again.
func TestStreamOutlivesOutage(t *testing.T) {
	t.Parallel()
	redis, o := redistest.Start(t), testOptions()
	replica := func(name shim.Replica) (*Sessions, *node.Heart) {
		s := openTest(t, redis.URL(), o)
		heart := node.NewHeart(s, name, time.Second, s.log)
		return s.Sessions(heart, 10, 8*time.Second), heart
	}
	keeper, beats := replica("keeper")
	other, looks := replica("other")
	ctx, stop := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	loops.Go(func() { looks.Run(ctx) })
	_, err := keeper.Make(ctx, "session", "owner", "", []byte("state"))
	must(t, err)
	_, err = keeper.Open(ctx, "session", "stream", []byte("[1]"))
	must(t, err)
	state := func() string {
		state, _, err := other.Since(ctx, "session", "stream", 0, func(int64, []byte) {})
		must(t, err)
		return state
	}
	same(t, "open", state())
	redis.Freeze()
	<-time.After(4 * time.Second)
	redis.Thaw()
	same(t, "open", state())
	alive, die := context.WithCancel(ctx)
	loops.Go(func() { beats.Run(alive) })
	for begin := time.Now(); time.Since(begin) < 2*time.Second; <-time.After(10 * time.Millisecond) {
		same(t, "open", state())
	}
	die()
	eventually(t, "its replica is gone", func() bool { return state() == "lost" })
}

// TestUsedSessionMakesNoRoom: the sets hear of a use at the next tick. Until then the session knows of it.
func TestUsedSessionMakesNoRoom(t *testing.T) {
	bubble(t, func(t *testing.T, st *Store) {
		s := sessionsOf(st, 2, 24*time.Hour)
		for _, id := range []string{"a", "b"} {
			_, err := s.Make(t.Context(), id, "", "", []byte("x"))
			must(t, err)
			s.Use(t.Context(), id, 0)
			pass(time.Minute)
		}
		pass(11 * time.Minute)
		_, _, err := s.Get(t.Context(), "a") // a request of its client begins
		must(t, err)
		_, err = s.Make(t.Context(), "c", "", "", []byte("y"))
		must(t, err)
		if _, rev, err := s.Get(t.Context(), "a"); rev == 0 || err != nil {
			t.Errorf("the session in use: %d, %v", rev, err)
		}
		if _, rev, err := s.Get(t.Context(), "b"); rev != 0 || err != nil {
			t.Errorf("the one that is idle for longest: %d, %v", rev, err)
		}
	})
}

// TestOwnersSetForgets: clients that never delete their sessions leave no entries behind.
func TestOwnersSetForgets(t *testing.T) {
	bubble(t, func(t *testing.T, st *Store) {
		s := sessionsOf(st, 1000, 24*time.Hour)
		for i := range 40 {
			_, err := s.Make(t.Context(), fmt.Sprint("s", i), "o", "", []byte("x"))
			must(t, err)
			pass(12 * time.Hour)
		}
		if n, err := st.client.ZCard(t.Context(), st.keys.sessionsOf(digest("o"))).Result(); n > 4 || err != nil {
			t.Errorf("%d entries, %v", n, err)
		}
	})
}

// A request that uses a session while its log is looked at counts as a use of it.
func TestUseDuringALookIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Sessions{idle: time.Hour, tick: 5 * time.Second, store: &Store{}, sessionLogs: &sessionLogs{afterEnd: 10 * time.Minute}}
		c.busy = func(string) bool { return false }
		k := &knownSession{used: time.Now(), kept: time.Now().Add(time.Second)}
		c.known = map[string]*knownSession{"s": k}
		pass(20 * time.Minute)
		_, left, now := c.dueSessions()
		same(t, []string{"s"}, left)
		pass(time.Second)
		k.used = time.Now()
		pass(time.Second)
		c.noteKept(left, now)
		pass(c.idle / 8)
		used, left, _ := c.dueSessions()
		same(t, []string{"s"}, used)
		same(t, 0, len(left))
	})
}

// TestSessionUsage: the limit of sessions is as full as its fuller part, by the look at each tick.
func TestSessionUsage(t *testing.T) {
	bubble(t, func(t *testing.T, st *Store) {
		s := sessionsOf(st, 8, time.Hour).Halve(true)
		for i := range 3 {
			_, err := s.Make(t.Context(), fmt.Sprint("nobody", i), "", "192.0.2.1", nil)
			must(t, err)
		}
		for i := range 2 {
			_, err := s.Make(t.Context(), fmt.Sprint("alice", i), "alice", "", nil)
			must(t, err)
		}
		s.sweepSets(t.Context(), nil)
		same(t, 0.5, s.Usage()) // an address has made room for itself
	})
}

// TestLookForRoom: a look at a full share serves many new sessions, and those go that are idle for longest; one that was
// used since the look stays.
func TestLookForRoom(t *testing.T) {
	bubble(t, func(t *testing.T, st *Store) {
		const most, more = 400, 100
		s := sessionsOf(st, 2*most, 24*time.Hour).PerOwner(most)
		name := func(i int) string { return fmt.Sprint("s", i) }
		enter := func(i int) {
			_, err := s.Make(t.Context(), name(i), "mallory", "", []byte("x"))
			must(t, err)
		}
		for i := range most {
			enter(i)
			pass(time.Second)
		}
		looked := map[*leavers]bool{}
		for i := range more {
			enter(most + i)
			looked[s.looks.of[digest("mallory")]] = true
			if i == 0 { // a request of one that is among the next
				pass(time.Second)
				_, _, err := s.Get(t.Context(), name(2))
				must(t, err)
			}
		}
		if n := len(looked); n > more/(most/50)+2 {
			t.Errorf("%d looks for %d sessions", n, more)
		}
		for i := range most + more {
			n, err := st.client.Exists(t.Context(), st.keys.session(name(i))).Result()
			must(t, err)
			if stays := i == 2 || i > more; stays != (n > 0) {
				t.Errorf("session %d is there: %t", i, n > 0)
			}
		}
	})
}

// A new session over a full share, and over an empty one (0).
func BenchmarkNewSession(b *testing.B) {
	for kind, open := range map[string]func(b *testing.B) *Store{
		"embedded": func(b *testing.B) *Store { return openTest(b, "embedded", testOptions()) },
		"redis":    func(b *testing.B) *Store { return openTest(b, redistest.Start(b).URL(), testOptions()) },
	} {
		for _, full := range []int{0, 1000, 10_000, 50_000} {
			b.Run(fmt.Sprint(kind, "/", full), func(b *testing.B) {
				most := 2 * full
				if full == 0 {
					most = 1e9
				}
				s := sessionsOf(open(b), most, time.Hour).PerOwner(most)
				id := 0
				enter := func() {
					id++
					_, err := s.Make(b.Context(), fmt.Sprint("s", id), "mallory", "", []byte("x"))
					must(b, err)
				}
				for range full {
					enter()
				}
				for b.Loop() {
					enter()
				}
			})
		}
	}
}

// A session without a request besides its handshake goes first once it has been so for a minute. Before that, the one
// goes that is idle for longest.
func TestHandshakesGoFirstAfterAMinute(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		goes  string
	}{"at once": {20 * time.Second, "used"}, "after a minute": {2 * time.Minute, "greeted"}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, st *Store) {
				s := sessionsOf(st, 4, 24*time.Hour).PerOwner(2)
				enter := func(id string) {
					_, err := s.Make(t.Context(), id, "mallory", "", []byte("x"))
					must(t, err)
				}
				enter("used")
				s.Use(t.Context(), "used", 0)
				pass(10 * time.Second)
				enter("greeted")
				pass(c.after)
				enter("new")
				for _, id := range []string{"used", "greeted", "new"} {
					n, err := st.client.Exists(t.Context(), st.keys.session(id)).Result()
					must(t, err)
					if gone := id == c.goes; gone != (n == 0) {
						t.Errorf("%s is there: %t", id, n > 0)
					}
				}
			})
		})
	}
}
