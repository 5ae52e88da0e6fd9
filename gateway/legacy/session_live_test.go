package legacy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// endings collects the ids of sessions that have ended, and how long those were that were made here.
type endings struct {
	mu    sync.Mutex
	ids   []string
	times []time.Duration
}

func (e *endings) add(s Ended) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ids = append(e.ids, s.ID)
	if !s.Since.IsZero() {
		e.times = append(e.times, time.Since(s.Since))
	}
}

func (e *endings) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprint(e.ids)
}

func newTable(store Sessions) (*Table, *endings) {
	e := &endings{}
	return NewTable(store, 3*time.Second, func(_ context.Context, s Ended) { e.add(s) }), e
}

// runTable runs a table; stop ends that, and waits for it.
func runTable(t *testing.T, table *Table) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- table.Run(ctx) }()
	return func() {
		cancel()
		wiretest.Check(t, <-done)
	}
}

func mustCreate(t *testing.T, table *Table, st sessionState) *session {
	t.Helper()
	return wiretest.Must(table.createSession(t.Context(), shim.Share{Owner: st.Owner}, st))(t)
}

func TestSessionIDs(t *testing.T) {
	table, _ := newTable(wiretest.OpenSessions(t, 100, time.Hour))
	seen := make(map[string]bool)
	for range 20 {
		id := mustCreate(t, table, sessionState{Version: "2025-11-25"}).id
		if seen[id] || len(id) < 32 || strings.ContainsFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
			t.Fatalf("session id %q", id)
		}
		seen[id] = true
	}
}

// Sessions with much to say of themselves, or many subscriptions, have a bound in bytes, and a share of it. Ordinary ones
// and other callers have room; the end of one makes some.
func TestLargeSessionsAreBounded(t *testing.T) {
	table, _ := newTable(wiretest.OpenSessions(t, 100, time.Hour))
	table.Limit(0, 96<<10, true)
	large := func(owner string) (*session, error) {
		return table.createSession(t.Context(), shim.Share{Owner: owner}, sessionState{Upstream: "up", Owner: owner, Capabilities: []byte(`{"x":"` + strings.Repeat("x", 16<<10) + `"}`)})
	}
	var made []*session
	refused := func(err error) bool {
		_, busy := errors.AsType[*shim.BusyError](err)
		return busy
	}
	for range 3 {
		made = append(made, wiretest.Must(large("mallory"))(t))
	}
	if _, err := large("mallory"); !refused(err) {
		t.Errorf("a fourth large session: %v", err)
	}
	small := mustCreate(t, table, sessionState{Upstream: "up", Owner: "mallory"})
	uri := "file:///" + strings.Repeat("x", 7<<10)
	wiretest.Check(t, small.subscribeTo(t.Context(), uri+"1"))
	wiretest.Check(t, small.subscribeTo(t.Context(), uri+"2"))
	if err := small.subscribeTo(t.Context(), uri+"3"); !refused(err) {
		t.Errorf("too much to subscribe to: %v", err)
	}
	wiretest.Must(large("honest"))(t)
	wiretest.Check(t, table.endSession(t.Context(), made[0].id, made[0].currentState()))
	wiretest.Must(large("mallory"))(t)
	wiretest.Check(t, small.unsubscribeFrom(t.Context(), uri+"1"))
}

// Whoever is not the session's owner, or comes to another endpoint, is told what a
// stranger with a guessed id is told (Z7).
func TestSessionBelongs(t *testing.T) {
	table, _ := newTable(wiretest.OpenSessions(t, 10, time.Hour))
	s := mustCreate(t, table, sessionState{Upstream: "up", Owner: "alice", Version: "2025-11-25"})
	defer s.endUse()
	for _, c := range []struct {
		id, upstream, subject string
		want                  error
	}{
		{s.id, "up", "alice", nil},
		{s.id, "up", "bob", errNoSession},
		{s.id, "up", "", errNoSession},
		{s.id, "other", "alice", errNoSession},
		{"guess", "up", "alice", errNoSession},
	} {
		got, err := table.open(t.Context(), c.id, c.upstream, shim.Principal{Subject: c.subject})
		if !errors.Is(err, c.want) || (err == nil) != (got != nil) {
			t.Errorf("open %+v: %v", c, err)
		}
		if got != nil {
			got.endUse()
		}
	}
	if table.isBusy("guess") {
		t.Error("a guess left something behind")
	}
}

func TestSessionState(t *testing.T) {
	st := sessionState{
		Upstream: "up", Owner: "o", Version: "2025-11-25", Capabilities: []byte(`{"roots":{}}`), ClientInfo: []byte(`{"name":"n"}`),
		LogLevel: "info", Subscriptions: []string{"a"},
	}
	b := st.encode()
	got, err := decodeSession(b)
	if err != nil || !reflect.DeepEqual(got, st) {
		t.Errorf("%s\nread as %+v, %v", b, got, err)
	}
	if _, err := decodeSession([]byte(`[]`)); err == nil {
		t.Error("a state that is none was read")
	}
}

func TestSessionSubscribed(t *testing.T) {
	var st sessionState
	for _, c := range []struct {
		uri  string
		on   bool
		want string
	}{{"b", true, "[b]"}, {"a", true, "[a b]"}, {"a", true, "[a b]"}, {"x", false, "[a b]"}, {"b", false, "[a]"}, {"a", false, "[]"}} {
		before := fmt.Sprint(st.Subscriptions)
		next := st.withSubscription(c.uri, c.on)
		if got := fmt.Sprint(next.Subscriptions); got != c.want {
			t.Errorf("%s %t: %s, want %s", c.uri, c.on, got, c.want)
		}
		if fmt.Sprint(st.Subscriptions) != before {
			t.Errorf("%s %t changed the old state", c.uri, c.on)
		}
		st = next
	}
}

// Changes of one state at the same time all take effect.
func TestSessionUpdateTogether(t *testing.T) {
	table, _ := newTable(wiretest.OpenSessions(t, 10, time.Hour))
	s := mustCreate(t, table, sessionState{})
	defer s.endUse()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			wiretest.Check(t, s.subscribeTo(t.Context(), fmt.Sprint(i)))
		})
	}
	all.Wait()
	if n := len(s.currentState().Subscriptions); n != 20 {
		t.Errorf("%d of 20 changes are left", n)
	}
	wiretest.Check(t, table.endSession(t.Context(), s.id, s.currentState()))
	if err := s.subscribeTo(t.Context(), "late"); !errors.Is(err, errNoSession) {
		t.Errorf("an ended session was changed: %v", err)
	}
}

// wentBack is a store that can go back to the first state of a session.
type wentBack struct {
	Sessions
	first []byte
	rev   int64
	puts  atomic.Int64
}

func (w *wentBack) Get(ctx context.Context, id string) ([]byte, int64, error) {
	if w.rev != 0 {
		return w.first, w.rev, nil
	}
	return w.Sessions.Get(ctx, id)
}

func (w *wentBack) Put(ctx context.Context, id string, rev int64, state []byte) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if w.puts.Add(1); w.rev == 0 {
		return w.Sessions.Put(ctx, id, rev, state)
	} else if w.rev != rev {
		return 0, nil
	}
	w.first, w.rev = state, rev+1
	return w.rev, nil
}

// Where the store has gone back to an older state, a change is made to that, at once.
func TestSessionAfterStoreWentBack(t *testing.T) {
	w := &wentBack{Sessions: wiretest.OpenSessions(t, 10, time.Hour)}
	table, _ := newTable(w)
	s := mustCreate(t, table, sessionState{Upstream: "up"})
	defer s.endUse()
	first, rev, err := w.Get(t.Context(), s.id)
	if err == nil {
		err = s.subscribeTo(t.Context(), "lost")
	}
	if err != nil {
		t.Fatal(err)
	}
	w.first, w.rev = first, rev
	w.puts.Store(0)
	ctx, cancel := context.WithTimeout(t.Context(), wiretest.Patience)
	defer cancel()
	if err := s.subscribeTo(ctx, "kept"); err != nil || w.puts.Load() != 1 {
		t.Errorf("%d attempts, %v", w.puts.Load(), err)
	}
	if got := s.currentState().Subscriptions; len(got) != 1 || got[0] != "kept" {
		t.Errorf("subscribed to %v", got)
	}
}

func TestSessionCalls(t *testing.T) {
	table, _ := newTable(wiretest.OpenSessions(t, 10, time.Hour))
	s := mustCreate(t, table, sessionState{})
	defer s.endUse()
	gone, leave := context.WithCancel(t.Context())
	call := func(ctx context.Context, text string) (context.Context, func(), bool) {
		m := wiretest.Must(jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + text + `"}}`)))(t)
		m.Raw = nil // as in a wait that is resumed
		return s.beginRequest(ctx, shim.Principal{}, m)
	}
	ctx, end, _ := call(gone, "a")
	if _, _, ok := call(t.Context(), "a"); ok {
		t.Error("a call that was repeated on its way has begun twice")
	}
	same, endSame, _ := call(t.Context(), "b")
	if err := s.abortRequest(t.Context(), shim.Principal{}, jsonrpc.IntID(1), ""); err != nil || ctx.Err() != nil || same.Err() != nil {
		t.Errorf("a cancellation that may mean another request has ended one, %v", err)
	}
	if _, endTwin, ok := call(t.Context(), "b"); !ok {
		t.Error("a client that gives its requests one id has made the same call twice, and is refused")
	} else {
		endTwin()
	}
	endSame()
	leave()
	if ctx.Err() != nil {
		t.Error("a client that left has cancelled (X3)")
	}
	wiretest.Check(t, s.abortRequest(t.Context(), shim.Principal{}, jsonrpc.StringID("1"), ""))
	if ctx.Err() != nil {
		t.Error("another id was cancelled")
	}
	wiretest.Check(t, s.abortRequest(t.Context(), shim.Principal{}, jsonrpc.IntID(1), ""))
	if !errors.Is(context.Cause(ctx), shim.ErrCancelled) {
		t.Errorf("cancelled with %v", context.Cause(ctx))
	}
	end()
	if len(s.calls) != 0 {
		t.Errorf("in flight: %v", s.calls)
	}
}

// What a replica keeps of a session goes with its last request, unless it listens
// or has something to say.
func TestSessionForgotten(t *testing.T) {
	table, ended := newTable(wiretest.OpenSessions(t, 10, time.Hour))
	live := func() int {
		table.mu.Lock()
		defer table.mu.Unlock()
		return len(table.live)
	}
	s := mustCreate(t, table, sessionState{Upstream: "up"})
	s.endUse()
	if live() != 0 {
		t.Error("an idle session is kept")
	}
	s = wiretest.Must(table.open(t.Context(), s.id, "up", shim.Principal{}))(t)
	s.postMessage([]byte("m"))
	s.endUse()
	if live() != 0 {
		t.Error("a session is kept for a message")
	}
	said := ""
	if _, _, err := table.store.Since(t.Context(), s.id, getStream, 0, func(_ int64, m []byte) { said += string(m) }); said != "m" || err != nil {
		t.Errorf("the message is lost with its session: %q, %v", said, err)
	}
	wiretest.Check(t, table.endSession(t.Context(), s.id, s.currentState()))
	if live() != 0 || s.ctx.Err() == nil || ended.String() != "["+s.id+"]" {
		t.Errorf("%d live, context %v, ended %s", live(), s.ctx.Err(), ended)
	}
}

// brokenSessions is a store that cannot be reached while Down is set.
type brokenSessions struct {
	Sessions
	Down atomic.Bool
}

var errStore = fmt.Errorf("%w: dial tcp 10.0.0.1:6379: refused", shim.ErrUnavailable)

func newBrokenSessions(t testing.TB, down bool) *brokenSessions {
	b := &brokenSessions{Sessions: wiretest.OpenSessions(t, 10, time.Hour)}
	b.Down.Store(down)
	return b
}

func (b *brokenSessions) Get(ctx context.Context, id string) ([]byte, int64, error) {
	if b.Down.Load() {
		return nil, 0, errStore
	}
	return b.Sessions.Get(ctx, id)
}

func (b *brokenSessions) Make(ctx context.Context, id, owner, address string, state []byte) (int64, error) {
	if b.Down.Load() {
		return 0, errStore
	}
	return b.Sessions.Make(ctx, id, owner, address, state)
}

func (b *brokenSessions) Put(ctx context.Context, id string, rev int64, state []byte) (int64, error) {
	if b.Down.Load() {
		return 0, errStore
	}
	return b.Sessions.Put(ctx, id, rev, state)
}

func (b *brokenSessions) Delete(ctx context.Context, id string) error {
	if b.Down.Load() {
		return errStore
	}
	return b.Sessions.Delete(ctx, id)
}

// A session that cannot be deleted for want of the store goes on.
func TestSessionStoreDown(t *testing.T) {
	store := newBrokenSessions(t, false)
	table, ended := newTable(store)
	s := mustCreate(t, table, sessionState{})
	defer s.endUse()
	store.Down.Store(true)
	if err := table.endSession(t.Context(), s.id, s.currentState()); !errors.Is(err, errStore) || s.ctx.Err() != nil || ended.String() != "[]" {
		t.Errorf("end: %v, ended %s", err, ended)
	}
}

// Where a share is full, the session of it that has been idle for longest makes room for a new one. One that is in use
// stays. Where all together are too many, one makes room that has been idle for ten minutes.
func TestSessionMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, ended := newTable(wiretest.OpenSessions(t, 4, 24*time.Hour).PerOwner(2))
		defer runTable(t, table)()
		make := func(owner string) *session {
			s, err := table.createSession(t.Context(), shim.Share{Owner: owner}, sessionState{Owner: owner})
			if err != nil {
				return nil
			}
			table.noteUse(t.Context(), s, 0)
			return s
		}
		used, idle := make("alice"), make("alice")
		idle.endUse()
		<-time.After(9 * time.Minute)
		make("alice").endUse()
		synctest.Wait()
		// A session that makes room while it is swept is told twice.
		if !slices.Equal(slices.Compact(slices.Clone(ended.ids)), []string{idle.id}) || used.ctx.Err() != nil {
			t.Errorf("ended %s; idle was %s, in use is %s: %v", ended, idle.id, used.id, used.ctx.Err())
		}
		make("bob").endUse()
		make("bob").endUse()
		if make("carol") != nil {
			t.Error("a session beyond the bound of all was made")
		}
		<-time.After(11 * time.Minute)
		make("carol").endUse()
		if synctest.Wait(); len(slices.Compact(slices.Sorted(slices.Values(ended.ids)))) != 2 || used.ctx.Err() != nil {
			t.Errorf("ended %s, in use is %s: %v", ended, used.id, used.ctx.Err())
		}
		used.endUse()
	})
}

// An idle session that expires is ended like one that its client ends.
func TestSessionExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, ended := newTable(wiretest.OpenSessions(t, 10, time.Minute))
		stop := runTable(t, table)
		idle := mustCreate(t, table, sessionState{Since: time.Now().Unix(), Maker: table.name})
		idle.postMessage([]byte("m"))
		idle.endUse()
		used := mustCreate(t, table, sessionState{})
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if ended.String() != "["+idle.id+"]" || idle.ctx.Err() == nil || used.ctx.Err() != nil {
			t.Errorf("ended %s, idle %v, used %v", ended, idle.ctx.Err(), used.ctx.Err())
		}
		if len(ended.times) != 1 || ended.times[0] < time.Minute || ended.times[0] > 2*time.Minute {
			t.Errorf("it was there for %v", ended.times)
		}
		used.endUse()
		<-time.After(59 * time.Second)
		if _, rev, err := table.store.Get(t.Context(), used.id); rev == 0 || err != nil {
			t.Error("idle time did not begin at the end of the use")
		}
		stop()
		wiretest.Check(t, table.Close(t.Context()))
	})
}

// A stop waits for what sessions have under way, and no longer than it has time.
func TestTableCloses(t *testing.T) {
	table, _ := newTable(newBrokenSessions(t, false))
	hangs := make(chan struct{})
	table.outlive(func() { <-hangs })
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := table.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("closed: %v", err)
	}
	close(hangs)
	wiretest.Check(t, table.Close(t.Context()))
}

// The state of a session holds a bounded number of tasks, and sharing it is safe.
func TestSessionTasks(t *testing.T) {
	var st sessionState
	old := st
	for i := range mostTold + 10 {
		st = st.withTasks([]shim.ID{shim.ID(fmt.Sprint(i))}, nil)
	}
	if len(st.Tasks) != mostTold || st.Tasks[0] != "10" || old.Tasks != nil {
		t.Errorf("%v", st.Tasks)
	}
	before := st.encode()
	less := st.withTasks(nil, []shim.ID{"50"})
	if !bytes.Equal(before, st.encode()) || len(less.Tasks) != mostTold-1 {
		t.Errorf("the old state changed, or the new did not: %s", less.Tasks)
	}
}

// The end of a GET stream that is noted late, when the client has opened the next one, does not have the gateway
// listen for ever.
func TestListeningEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := newTable(wiretest.OpenSessions(t, 10, time.Hour))
		s := mustCreate(t, table, sessionState{})
		s.listen.stop, s.listen.review = func(error) {}, newReviewer(t.Context(), s.listen, nil)
		s.detachGET(s.attachGET(t.Context(), func() {}, false))
		next := s.attachGET(t.Context(), func() {}, false)
		wiretest.Wait(2 * listenLinger)
		if !s.listen.isActive() {
			t.Error("it does not listen for the stream that is open")
		}
		s.detachGET(next)
		s.endUse()
		wiretest.Wait(2 * listenLinger)
		if s.listen.isActive() || table.Count() != 0 {
			t.Error("it listens for ever")
		}
	})
}

func TestMilliseconds(t *testing.T) {
	for in, want := range map[string]time.Duration{
		`0`: 0, `1`: time.Millisecond, `60000`: time.Minute, `6e4`: time.Minute, `1000.0`: time.Second,
		`null`: 1<<63 - 1, `1e400`: 1<<63 - 1, `9223372036854775807`: 1<<63 - 1, `-0`: 0,
		`-1`: -1, `0.5`: -1, `"1"`: -1, `{}`: -1, `true`: -1, `-1e400`: -1,
	} {
		got, ok := readMilliseconds([]byte(in))
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%s: %v, want %v", in, got, want)
		}
	}
}

func TestLoudEnough(t *testing.T) {
	for _, c := range []struct {
		level, want string
		ok          bool
	}{{"debug", "", true}, {"debug", "info", false}, {"info", "info", true}, {"alert", "info", true}, {"odd", "emergency", true}} {
		if loudEnough(c.level, c.want) != c.ok {
			t.Errorf("%q at %q: %t", c.level, c.want, !c.ok)
		}
	}
}

// However full a state is, there is room for all that is noted in it while the session lasts.
func TestStateKeepsRoomForNames(t *testing.T) {
	st := sessionState{Upstream: "up", Version: "2025-11-25"}
	for n := maxSessionBytes - namesRoom; ; n-- {
		st.ClientInfo = json.RawMessage(`"` + strings.Repeat("x", n) + `"`)
		if busy := (*shim.BusyError)(nil); !errors.As(st.checkSize(), &busy) {
			break
		} else if busy.Key != "max_session_bytes" {
			t.Fatalf("refused by %s", busy.Key)
		}
	}
	st.LogLevel, st.Token = "emergency", "passthrough:"+strings.Repeat("x", 43)
	for range mostTold {
		st.Tasks = append(st.Tasks, shim.NewID())
	}
	for range mostSessionQuestions {
		st.SessionQuestions = append(st.SessionQuestions, shim.NewID())
	}
	if n := len(st.encode()); n > maxSessionBytes || n < maxSessionBytes-200 {
		t.Errorf("a full state has %d bytes", n)
	}
	if st, err := st.addSubscription("a"); err != nil && len(st.Tasks) != mostTold {
		t.Errorf("a refused subscription changed the state: %v", err)
	}
}

// Questions that come at the same time have no more room than others.
func TestStateKeepsToItsQuestions(t *testing.T) {
	var st sessionState
	for range mostSessionQuestions {
		st = wiretest.Must(st.withSessionQuestions([]shim.ID{shim.NewID()}, nil))(t)
	}
	if full, err := st.withSessionQuestions([]shim.ID{shim.NewID()}, nil); !errors.Is(err, errManySessionQuestions) || len(full.SessionQuestions) != mostSessionQuestions {
		t.Errorf("one more: %v", err)
	}
	if less, err := st.withSessionQuestions(nil, st.SessionQuestions[:1]); err != nil || len(less.SessionQuestions) != mostSessionQuestions-1 {
		t.Errorf("one that is over: %v", err)
	}
}
