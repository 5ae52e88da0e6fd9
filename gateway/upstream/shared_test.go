package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/upstream/forward"
	"taskgate/gateway/upstream/reading"
	"taskgate/internal/work"
	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// sharedMap is a Sessions in memory, which all replicas use.
type sharedMap struct {
	mu    sync.Mutex
	state map[string]*sharedEntry
	fail  error
	taken int64
	hears []func(key string, message []byte)
}

type sharedEntry struct {
	b    []byte
	rev  int64
	used time.Time
	by   map[string]time.Time
	over bool
}

func newSharedMap() *sharedMap { return &sharedMap{state: make(map[string]*sharedEntry)} }

func (m *sharedMap) Load(_ context.Context, key string) ([]byte, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.state[key]; e != nil {
		e.used = time.Now()
		return e.b, e.rev, m.fail
	}
	return nil, 0, m.fail
}

// length is how many sessions are stored.
func (m *sharedMap) length() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.state)
}

func (m *sharedMap) Swap(_ context.Context, key string, rev int64, state []byte) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.state[key]
	if e == nil {
		e = &sharedEntry{}
	}
	if e.rev != rev {
		return 0, m.fail
	}
	e.b, e.rev, e.used = state, rev+1, time.Now()
	m.state[key] = e
	return e.rev, m.fail
}

func (m *sharedMap) Use(_ context.Context, key, by string, uses bool) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.state[key]
	if e == nil {
		return false, m.fail
	}
	e.used = time.Now()
	if e.by == nil {
		e.by = make(map[string]time.Time)
	}
	if delete(e.by, by); uses {
		e.by[by] = time.Now()
	}
	return e.over, m.fail
}

func (m *sharedMap) End(_ context.Context, key, by string, over bool, idle time.Duration) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.state[key]
	if e == nil {
		return nil, m.fail
	}
	e.over = e.over || over
	inUse := time.Since(e.used) < idle
	for who, at := range e.by {
		inUse = inUse || over && who != by && time.Since(at) < noteCounts
	}
	if inUse {
		return nil, m.fail
	}
	delete(m.state, key)
	return e.b, m.fail
}

// noteCounts is for how long the note of a use counts.
const noteCounts = 90 * time.Second

func (m *sharedMap) Sweep(_ context.Context, idle time.Duration) (ended [][]byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, e := range m.state {
		if unused := time.Since(e.used); unused >= idle || e.over && unused >= noteCounts {
			ended = append(ended, e.b)
			delete(m.state, key)
		}
	}
	return ended, m.fail
}

func (m *sharedMap) TakeNumber(context.Context) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken++
	return m.taken, m.fail
}

func (m *sharedMap) Tell(_ context.Context, key string, message []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, hear := range m.hears {
		hear(key, message)
	}
	return m.fail
}

func (m *sharedMap) Hear(ctx context.Context, hear func(key string, message []byte)) {
	m.mu.Lock()
	m.hears = append(m.hears, hear)
	m.mu.Unlock()
	<-ctx.Done()
}

// sharedSession is a session of an upstream client that talks to nobody.
func sharedSession(t *testing.T, m *sharedMap) *session {
	t.Helper()
	h, err := New(Config{Name: "up", URL: "http://127.0.0.1:1/", Replica: "a", Sessions: m, StartTimeout: 2 * time.Second})
	must(t, err)
	t.Cleanup(func() { _ = h.Close(context.Background()) })
	return newSession(h.sessions, sessionKey{key: "k", caps: reading.FingerprintOf(nil)}, shim.Session{Key: "k", Shared: true})
}

// racing is a sharedMap whose first Load waits for that of the others.
type racing struct {
	*sharedMap
	all  *sync.WaitGroup
	once sync.Once
}

func (r *racing) Load(ctx context.Context, key string) ([]byte, int64, error) {
	b, rev, err := r.sharedMap.Load(ctx, key)
	r.once.Do(func() {
		r.all.Done()
		r.all.Wait()
	})
	return b, rev, err
}

// Replicas that open a session in the same moment use the same one, and the other one is deleted. So does a replica
// that comes later.
func TestSharedAgree(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		shared, all := newSharedMap(), &sync.WaitGroup{}
		b := another(t, a)
		var calls sync.WaitGroup
		s.Tool("t", fake.Text("ok"))
		all.Add(2)
		for _, h := range []*ServerClient{a, b} {
			h.wire.cfg.Sessions = &racing{sharedMap: shared, all: all}
			calls.Go(func() { mustCall(t, h, together()) })
		}
		calls.Wait()
		wantSessions(t, s, 2, 1, 1)
		late := another(t, a)
		late.wire.cfg.Sessions = shared
		mustCall(t, late, together())
		wantSessions(t, s, 2, 1, 1)
		for _, x := range s.Seen("tools/call")[1:] {
			if got, want := x.Header.Get("Mcp-Session-Id"), s.Seen("tools/call")[0].Header.Get("Mcp-Session-Id"); got != want {
				t.Errorf("a call in session %s, and another in %s", got, want)
			}
		}
	})
}

// A handshake that fails leaves nothing that others would wait for.
func TestSharedFails(t *testing.T) {
	m := newSharedMap()
	s := sharedSession(t, m)
	if _, err := s.openShared(t.Context()); err == nil {
		t.Error("no error, and no server")
	}
	if m.length() != 0 {
		t.Error("there is a session")
	}
}

// A session that replicas share is deleted once none has used it for long, and not with the end of
// the client's session: another replica may have calls in it.
func TestSharedIdlesOut(t *testing.T) {
	for ended, idle := range map[bool]time.Duration{false: defaultIdle, true: endedIdle} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, a *ServerClient) {
			b := shareSessions(t, a)
			release := make(chan struct{})
			s.Tool("t", func(x *fake.Exchange) { <-release; fake.Text("ok")(x) })
			r := sharedIn()
			var calls sync.WaitGroup
			for _, h := range []*ServerClient{a, b} {
				calls.Go(func() { checkCall(t, h, r) })
				synctest.Wait()
			}
			wantSessions(t, s, 1, 0, 1)
			release <- struct{}{} // one of the calls
			if ended {
				a.EndSession(t.Context(), "a")
				b.EndSession(t.Context(), "a")
			}
			pauseFor(t, time.Hour)
			wantSessions(t, s, 1, 0, 1)
			release <- struct{}{}
			calls.Wait()
			pauseFor(t, idle-time.Second)
			wantSessions(t, s, 1, 0, 1)
			pauseFor(t, 3*time.Second)
			wantSessions(t, s, 1, 1, 0)
		})
	}
}

// Once its client has ended its own, a session that replicas share is deleted at once, unless a task may go on in it: a
// browser, say, is free for the next client.
func TestSharedEndsSoon(t *testing.T) {
	for has, idle := range map[bool]time.Duration{false: time.Second, true: endedIdle + time.Second} {
		bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
			h.wire.cfg.Sessions = newSharedMap()
			h.wire.cfg.TasksUnnoted = func(context.Context) (bool, error) { return has, nil }
			s.Tool("t", fake.Text("ok"))
			r := sharedIn()
			checkCall(t, h, r)
			h.EndSession(t.Context(), "a")
			pauseFor(t, idle-time.Second)
			wantSessions(t, s, 1, 0, 1)
			pauseFor(t, 2*time.Second)
			wantSessions(t, s, 1, 1, 0)
		})
	}
}

// Its own calls keep it, and nobody else's here.
func TestSharedEndsWithItsOwnCalls(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		h.wire.cfg.Sessions = newSharedMap()
		h.wire.cfg.TasksUnnoted = func(context.Context) (bool, error) { return false, nil }
		may := make(chan struct{})
		s.Tool("t", held(may, true))
		r, other := sharedIn(), sharedIn()
		other.Session.Key = "b"
		own, others := aloftIn(t, h, r, nil), aloftIn(t, h, other, nil)
		h.EndSession(t.Context(), "a")
		pauseFor(t, time.Hour)
		wantSessions(t, s, 2, 0, 2)
		own.leave(t, context.Canceled)
		pauseFor(t, 2*time.Second)
		wantSessions(t, s, 2, 1, 1)
		close(may)
		others.ended(t)
	})
}

// Its own calls at another replica keep it, also where that has not heard of the end, and no other call there does.
func TestSharedEndsWithItsOwnCallsElsewhere(t *testing.T) {
	bubble(t, fake.Stateful, Config{TasksUnnoted: noneUnnoted}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b := shareSessions(t, a)
		may := make(chan struct{})
		s.Tool("t", held(may, true))
		r, other := sharedIn(), sharedIn()
		r.Session.Key, other.Session.Key = "mine", "other"
		s.Tool("quick", fake.Text("ok"))
		quick := r
		quick.Name, quick.Params = "quick", json.RawMessage(`{"name":"quick"}`)
		checkCall(t, a, quick)
		own, others := aloftIn(t, b, r, nil), aloftIn(t, b, other, nil)
		pauseFor(t, 2*time.Minute)
		a.EndSession(t.Context(), "mine")
		pauseFor(t, time.Hour)
		wantSessions(t, s, 2, 0, 2)
		own.leave(t, context.Canceled)
		pauseFor(t, 3*time.Second)
		wantSessions(t, s, 2, 1, 1)
		close(may)
		others.ended(t)
	})
}

// noneUnnoted says that all tasks are noted.
func noneUnnoted(context.Context) (bool, error) { return false, nil }

// A session that only a lost replica has used ends with its client's at once, and otherwise once it has been idle for its
// time.
func TestSharedEndsWithoutItsReplica(t *testing.T) {
	for name, ends := range map[string]bool{"ended by its client": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, fake.Stateful, Config{TasksUnnoted: noneUnnoted}, func(t *testing.T, s *fake.Server, a *ServerClient) {
				lost := shareSessions(t, a)
				s.Tool("t", fake.Text("ok"))
				checkCall(t, lost, sharedIn())
				must(t, lost.Close(t.Context()))
				sweeps := func(d time.Duration) {
					for range d / time.Minute {
						pauseFor(t, time.Minute)
						a.SweepSessions(t.Context())
					}
				}
				if ends {
					a.EndSession(t.Context(), "a")
					pauseFor(t, 3*time.Second)
				} else {
					sweeps(defaultIdle)
					wantSessions(t, s, 1, 0, 1)
					sweeps(sweepAfter + time.Minute)
				}
				wantSessions(t, s, 1, 1, 0)
			})
		})
	}
}

// A session in which another replica goes on with a call is kept.
func TestSharedEndsSoonButKept(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		h.wire.cfg.Sessions = newSharedMap()
		h.wire.cfg.TasksUnnoted = func(context.Context) (bool, error) { return false, nil }
		s.Tool("t", func(x *fake.Exchange) { x.Hang() })
		r := sharedIn()
		f := aloftIn(t, h, r, nil)
		h.EndSession(t.Context(), "a")
		f.leave(t, shim.ErrDetached)
		pauseFor(t, endedIdle-time.Second)
		wantSessions(t, s, 1, 0, 1)
	})
}

// The queue of a slow client is bounded, in number and in bytes, and the end of its call waits for a moment.
func TestAsidesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		sink := &shimtest.Sink{OnProgress: func(p shim.Progress) {
			told = append(told, p.Message)
			<-time.After(asidesMost / 4)
		}}
		r := &checkpointer{sink: sink, turn: work.NewTurn()}
		tell := func(text string, size int) {
			r.tellAside(make([]byte, size), func() { sink.Progress(shim.Progress{Message: text}) })
			synctest.Wait()
		}
		tell("first", 0)
		tell("second", maxAsides+1)
		tell("too large", 0)
		r.finishAsides()
		tell("too late", 0)
		if got := fmt.Sprint(told); got != "[first second]" {
			t.Errorf("told %s", got)
		}
		r = &checkpointer{sink: sink, turn: work.NewTurn()}
		for range mostAsides + 2 { // one of them is told
			tell("", 0)
		}
		if n := len(r.aside.queue); n != mostAsides {
			t.Errorf("%d wait", n)
		}
		r.finishAsides()
		told = nil
		sink.OnProgress = func(p shim.Progress) { told = append(told, p.Message); <-time.After(2 * asidesMost) }
		r = &checkpointer{sink: sink, turn: work.NewTurn()}
		tell("fifth", 0)
		tell("sixth", 0)
		r.finishAsides()
		if got := fmt.Sprint(told); got != "[fifth]" {
			t.Errorf("told %s by a client that does not read", got)
		}
	})
}

// sharedIn is in for a session that replicas share.
func sharedIn() shim.Request {
	r := in("a", ``)
	r.Session.Shared = true
	return r
}

// checkCall makes a call that has to succeed.
func checkCall(t *testing.T, h *ServerClient, r shim.Request) {
	reply, err := h.Call(t.Context(), r, nil)
	checkKind(t, reply, err, "", 0)
}

// A call whose shared session cannot be looked up says that it was not sent, and that
// this is for want of the store: it may be made again, and then it is sent once.
func TestSharedStoreAway(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		m := newSharedMap()
		h.wire.cfg.Sessions = m
		s.Tool("t", steps(1, 0, 0))
		r := sharedIn()
		m.fail = fmt.Errorf("%w: connection refused", shim.ErrUnavailable)
		var ue *shim.UpstreamError
		for range 2 {
			_, err := h.Call(t.Context(), r, nil)
			if !errors.As(err, &ue) || !ue.Unsent || !errors.Is(err, shim.ErrUnavailable) || ue.Message != "the session with the server cannot be looked up" {
				t.Errorf("store away: %v", err)
			}
		}
		m.fail = nil
		reply, err := h.Call(t.Context(), r, nil)
		checkKind(t, reply, err, "", 0)
		if s.Runs("k") != 1 || len(s.Seen("initialize")) != 1 {
			t.Errorf("tool ran %d times, %d handshakes", s.Runs("k"), len(s.Seen("initialize")))
		}
	})
}

// shareSessions is another replica, which shares sessions with a.
func shareSessions(t *testing.T, a *ServerClient) *ServerClient {
	t.Helper()
	m := newSharedMap()
	a.wire.cfg.Sessions = m
	b := another(t, a)
	b.wire.cfg.Sessions = m
	return b
}

// allowOneStream has the server allow one GET stream at a time, for as long as hold takes, and returns whether there
// is one. refused is called before it refuses another one.
func allowOneStream(s *fake.Server, refused func(), hold func(*fake.Exchange)) *atomic.Bool {
	busy := &atomic.Bool{}
	s.On("GET", func(x *fake.Exchange) {
		if !busy.CompareAndSwap(false, true) {
			refused()
			fake.Status(http.StatusConflict, "", "")(x)
			return
		}
		x.Head("text/event-stream")
		hold(x)
		busy.Store(false)
	})
	return busy
}

// Requests have numbers as ids in a session, whichever replica has opened it, and no two replicas have the same there.
func TestReplicasNumberApart(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b, c := shareSessions(t, a), another(t, a)
		c.wire.cfg.Sessions = a.wire.cfg.Sessions
		s.Tool("t", fake.Text("ok"))
		for _, h := range []*ServerClient{a, b, c, b} {
			mustCall(t, h, together())
		}
		wantSessions(t, s, 1, 0, 1)
		seen := make(map[string]bool)
		for i, block := range []int{0, 1, 2, 1} {
			id := s.Seen("tools/call")[i].ID
			n, err := strconv.Atoi(id)
			first := 0
			if block > 0 {
				first = numbersFrom + block*numbersBlock
			}
			if err != nil || seen[id] || n < first || n > first+10 {
				t.Errorf("call %d has the id %s", i, id)
			}
			seen[id] = true
		}
	})
}

// A block lasts for long, and another one is taken when half of it is used. Without the store the numbers begin at
// random, below 2^31.
func TestNumbers(t *testing.T) {
	m := newSharedMap()
	n := &numbers{log: slog.New(slog.DiscardHandler)}
	within := func(from int64) {
		t.Helper()
		n.takeBlock(t.Context(), m)
		if got := n.nextNumber(); got < from || got >= from+numbersBlock {
			t.Errorf("%d, not in the block from %d", got, from)
		}
	}
	within(numbersFrom + numbersBlock)
	within(numbersFrom + numbersBlock)
	for range numbersBlock / 2 {
		n.nextNumber()
	}
	within(numbersFrom + 2*numbersBlock)
	m.taken = numbersFrom/numbersBlock - 2
	for range numbersBlock/2 + 1 {
		n.nextNumber()
	}
	within(2*numbersFrom - numbersBlock)
	m.fail = shim.ErrUnavailable
	for range 2 * numbersBlock {
		n.takeBlock(t.Context(), m)
		if got := n.nextNumber(); got < numbersFrom || got >= 2*numbersFrom {
			t.Fatalf("%d", got)
		}
	}
	m.fail, m.taken = nil, 6
	within(numbersFrom + 7*numbersBlock)
}

// A server says on any stream of a session what is for a call or a listener at another replica (mcp-go 1.2.1 does).
// Each of them hears it once.
func TestReplicasHearForEachOther(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b := shareSessions(t, a)
		e := hearIn(t, a, together().Session, everything)
		s.On("GET", fake.Status(http.StatusConflict, "", "")) // b has no stream of its own
		posts, may := make(chan *fake.Exchange, 2), make(chan struct{})
		s.Tool("t", func(x *fake.Exchange) {
			x.Head("text/event-stream")
			posts <- x
			<-may
			x.Event(x.Fill(result))
		})
		hears := map[string]*shimtest.Sink{"a": {}, "b": {}}
		atA := aloftIn(t, a, together(), hears["a"])
		postA := <-posts
		atB := aloftIn(t, b, together(), hears["b"])
		postB := <-posts
		progress := func(of *fake.Exchange, n int) string {
			return fmt.Sprintf(`{"progressToken":%s,"progress":%d,"message":"%d"}`, of.Token(), n, n)
		}
		s.Notify("notifications/progress", progress(postB, 1)) // on the stream of a
		synctest.Wait()
		postA.Event(`{"jsonrpc":"2.0","method":"notifications/progress","params":` + progress(postB, 2) + `}`)
		synctest.Wait()
		postB.Event(`{"jsonrpc":"2.0","method":"notifications/progress","params":` + progress(postA, 3) + `}`)
		postB.Event(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		synctest.Wait()
		close(may)
		atA.ended(t)
		atB.ended(t)
		heardA, _ := hears["a"].Heard()
		heardB, _ := hears["b"].Heard()
		if messages(heardA) != "3" || messages(heardB) != "1 2" || e.methods() != "tools/list_changed" {
			t.Errorf("the calls heard %q and %q, and the listener %q", messages(heardA), messages(heardB), e.methods())
		}
		e.end(t)
	})
}

// A client moves from one replica to another. The first one holds the stream from the server for a while, and passes
// on what comes; the other one has the stream as soon as the first one has closed it, and tells its client to look
// again at what may have changed.
func TestReplicasHandAStreamOn(t *testing.T) { handStreamOn(t, "other") }

// So does a client that takes the place of another one at the same replica.
func TestClientsHandAStreamOn(t *testing.T) { handStreamOn(t, "a") }

func handStreamOn(t *testing.T, to string) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b := shareSessions(t, a)
		b.wire.cfg.Replica = to
		streams := make(chan *fake.Exchange, 1)
		allowOneStream(s, func() {}, func(x *fake.Exchange) {
			streams <- x
			x.Hang()
			<-streams
		})
		say := func(list string) {
			t.Helper()
			stream := <-streams
			stream.Event(`{"jsonrpc":"2.0","method":"notifications/` + list + `/list_changed"}`)
			streams <- stream
			synctest.Wait()
		}
		list(t, a, together().Session, "tools/list")
		s.Tool("new", fake.Text("ok"))
		before := hearIn(t, a, together().Session, everything)
		after := hearIn(t, b, together().Session, everything)
		say("tools")
		before.endAs(t, ErrMoved)
		say("prompts")
		pauseFor(t, lingerMoved+time.Second)
		if len(streams) != 1 {
			t.Fatal("nobody has the stream")
		}
		say("resources")
		all := "resources/updated resources/updated tools/list_changed"
		if want := "prompts/list_changed " + all + " resources/list_changed"; before.methods() != "tools/list_changed" || after.methods() != want {
			t.Errorf("the first replica heard %q, and the other %q", before.methods(), after.methods())
		}
		after.end(t)
	})
}

// A replica that stops has the stream from the server no more. The replica to which the client has moved hears of that,
// and has it then: it would ask for it by itself up to a minute later.
func TestReplicaThatStopsHandsItsStreamOn(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b := shareSessions(t, a)
		busy := allowOneStream(s, func() {}, func(x *fake.Exchange) { x.Hang() })
		list(t, a, together().Session, "tools/list")
		s.Tool("new", fake.Text("ok"))
		before := hearIn(t, a, together().Session, everything)
		after := hearIn(t, b, together().Session, everything)
		before.endAs(t, ErrMoved)
		pauseFor(t, lingerMoved-time.Second) // b has asked for it so often that it is in no hurry
		check(t, a.Close(t.Context()))
		pauseFor(t, time.Second)
		if !busy.Load() {
			t.Error("nobody has the stream")
		}
		after.end(t)
	})
}

// A stream that one replica closes while another one asks for it is asked for again as soon as that is refused.
func TestReplicaHearsOfAStreamWhileItAsks(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b := shareSessions(t, a)
		var slow atomic.Bool
		asked, refuse := make(chan struct{}), make(chan struct{})
		busy := allowOneStream(s, func() {
			if slow.CompareAndSwap(true, false) {
				close(asked)
				<-refuse
			}
		}, func(x *fake.Exchange) { x.Hang() })
		list(t, a, together().Session, "tools/list")
		s.Tool("new", fake.Text("ok"))
		before := hearIn(t, a, together().Session, everything)
		after := hearIn(t, b, together().Session, everything)
		pauseFor(t, maxRetry) // b has asked for it so often that it is in no hurry
		slow.Store(true)
		<-asked
		before.end(t)
		pauseFor(t, linger+time.Second)
		if busy.Load() {
			t.Error("the first replica has the stream still")
		}
		close(refuse)
		pauseFor(t, time.Second)
		if !busy.Load() {
			t.Error("nobody has the stream")
		}
		after.end(t)
	})
}

// A session with other headers than the one that replicas share is the replica's own, as its client may send others
// with each request: the server is told there, too, that the client is ready, and it is deleted with the
// session of the client.
func TestSharedOtherVariantIsOwn(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		m := newSharedMap()
		h.wire.cfg.Sessions = m
		s.Tool("t", fake.Text("ok"))
		for _, name := range []string{"acme", "other"} {
			ctx := tenant(t.Context(), name)
			r := in("a", ``)
			r.Session.Shared, r.Session.Legacy, r.Session.Mark = true, true, forward.Mark(ctx)
			reply, err := h.Call(ctx, r, nil)
			checkKind(t, reply, err, "", 0)
		}
		synctest.Wait()
		wantSessions(t, s, 2, 0, 2)
		asked(t, s, "notifications/initialized", 2)
		h.EndSession(t.Context(), "a")
		pauseFor(t, 2*defaultIdle+time.Second)
		wantSessions(t, s, 2, 2, 0)
	})
}

// A call that begins just when its session would end for being idle keeps it.
func TestSharedIsTakenUpAgain(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		m := newSharedMap()
		h.wire.cfg.Sessions = m
		s.Tool("t", fake.Text("ok"))
		r := sharedIn()
		checkCall(t, h, r)
		pauseFor(t, defaultIdle-time.Second)
		ses := h.sessions.acquireSession(r.Session)
		h.sessions.expireSession(ses) // its timer has fired before
		synctest.Wait()
		wantSessions(t, s, 1, 0, 1)
		ses.releaseSession()
		pauseFor(t, defaultIdle-time.Second)
		wantSessions(t, s, 1, 0, 1)
		pauseFor(t, 2*time.Second)
		wantSessions(t, s, 1, 1, 0)
	})
}

// A replica that has lost a session joins the next one that another replica has begun after it.
func TestGenerationsBeginAnew(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b := shareSessions(t, a)
		s.Tool("t", fake.Text("ok"))
		r := sharedIn()
		checkCall(t, a, r)
		checkCall(t, b, r)
		pauseFor(t, 25*time.Minute)
		checkCall(t, a, r)
		pauseFor(t, 35*time.Minute+time.Second) // b's timer ends the session: unused for over 30 minutes
		wantSessions(t, s, 1, 1, 0)
		checkCall(t, b, r)
		wantSessions(t, s, 2, 1, 1)
		checkCall(t, a, r)
		wantSessions(t, s, 2, 1, 1) // a joins that of b
		checkCall(t, b, r)
		calls := s.Seen("tools/call")
		if x, y := calls[len(calls)-1].Header.Get("Mcp-Session-Id"), calls[len(calls)-2].Header.Get("Mcp-Session-Id"); x != y {
			t.Errorf("the replicas use %s and %s", x, y)
		}
	})
}

// A client that does not read its call's progress holds up no other session: what the replicas tell each other comes
// in one goroutine for all sessions of a server, and what it is too slow for is lost.
func TestSlowClientHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newSharedMap()
		h, err := New(Config{Name: "up", URL: "http://127.0.0.1:1/", Replica: "a", Sessions: m})
		must(t, err)
		slow := h.sessions.acquireSession(shim.Session{Key: "slow", Shared: true})
		other := h.sessions.acquireSession(shim.Session{Key: "other", Shared: true})
		x := slow.newExchange(target{}, shim.Request{Method: "tools/call"}, &shimtest.Sink{OnProgress: func(shim.Progress) {
			<-time.After(30 * time.Second) // as long as a write to a client may take
		}})
		x.checkpoints.state.ID = "r-1"
		end := x.beginExchange(t.Context())
		lis := newListener(t.Context(), shim.Filter{ToolsListChanged: true}, true)
		other.listeners.addListener(lis)
		begun := time.Now()
		go func() { // as Sessions.Hear calls it
			h.sessions.takeTold("slow", []byte(`b {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"r-1","progress":1}}`))
			h.sessions.takeTold("other", []byte(`b {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`))
		}()
		<-lis.news
		if late := time.Since(begun); late > time.Second {
			t.Errorf("the other session hears %v late", late)
		}
		end()
		slow.releaseSession()
		other.releaseSession()
		_ = h.Close(context.Background())
		synctest.Wait()
	})
}
