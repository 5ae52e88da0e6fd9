package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/shimtest"
	"taskgate/shim/shimtest/fake"
)

// offerMaps are the Offers of some replicas in memory.
type offerMaps struct {
	mu    sync.Mutex
	m     map[string]*offerEntry
	heard []func(string)
}

type offerEntry struct {
	q    []byte
	by   string
	over bool
}

// offerMap is one replica's.
type offerMap struct {
	*offerMaps
	fail error // what each operation ends with
	deaf int   // how many words are lost on the way
}

func (o *offerMap) fails(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail = err
}

func (o *offerMap) entry(ref string) *offerEntry {
	if o.m[ref] == nil {
		o.m[ref] = &offerEntry{}
	}
	return o.m[ref]
}

func (o *offerMap) tell(ref string) {
	for _, on := range o.heard {
		on(ref)
	}
}

func (o *offerMap) Offer(_ context.Context, ref string, content []byte, _ time.Duration) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return false, o.fail
	}
	if o.m[ref] == nil {
		o.entry(ref).q = content
	}
	open := o.m[ref].q != nil
	if open {
		o.tell(ref)
	}
	return open, nil
}

func (o *offerMap) Look(_ context.Context, ref string) ([]byte, bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.m[ref]
	if e == nil || o.fail != nil {
		return nil, false, o.fail
	}
	return e.q, e.over, nil
}

func (o *offerMap) Take(_ context.Context, ref, by string, _ time.Duration) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return false, o.fail
	}
	e := o.entry(ref)
	if e.by == "" && !e.over {
		e.by, e.q = by, nil
	}
	return e.by == by, nil
}

func (o *offerMap) Withdraw(_ context.Context, ref string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e := o.m[ref]; e != nil && o.fail == nil {
		e.over, e.q = true, nil
		o.tell(ref)
	}
	return o.fail
}

func (o *offerMap) Watch(ctx context.Context, on func(string)) {
	o.mu.Lock()
	o.heard = append(o.heard, func(ref string) {
		if o.deaf > 0 {
			o.deaf--
		} else if ctx.Err() == nil {
			on(ref)
		}
	})
	o.mu.Unlock()
	<-ctx.Done()
}

// replicas are two legs in front of one server, in one session with it. The first holds
// the GET stream, and the server refuses a second.
type replicas struct {
	t      *testing.T
	s      *fake.Server
	legs   [2]*HTTP
	offers [2]*offerMap
	quiet  context.CancelFunc // ends the listening of the first
}

func inReplicas(t *testing.T, run func(t *testing.T, r *replicas)) {
	t.Helper()
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, h *HTTP) {
		other, err := New(Config{Replica: "b", URL: h.cfg.URL})
		if err != nil {
			t.Fatal(err)
		}
		other.transport.DialContext = h.transport.DialContext
		r := &replicas{t: t, s: s, legs: [2]*HTTP{h, other}}
		maps := &offerMaps{m: map[string]*offerEntry{}}
		shared := newSharedMaps("a", "b")
		for i, leg := range r.legs {
			r.offers[i] = &offerMap{offerMaps: maps}
			leg.cfg.Sessions, leg.cfg.Offers = shared[i], r.offers[i]
		}
		ctx, quiet := context.WithCancel(t.Context())
		r.quiet = quiet
		listening, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			_ = h.Listen(ctx, together().Session, shim.Filter{Log: true}, func(shim.Filter) { close(listening) }, func(shim.Notification) {})
		}()
		<-listening
		s.On("GET", fake.Status(http.StatusConflict, "", ""))
		run(t, r)
		quiet()
		<-done
		if err := other.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// together is a call in the session of both.
func together() shim.Request {
	r := asksIn("a", all)
	r.Session.Shared = true
	return r
}

// asked has the server ask, and returns what it gets.
func (r *replicas) asked(id string) <-chan json.RawMessage {
	got := make(chan json.RawMessage, 1)
	go func() { got <- r.s.Request(id, "elicitation/create", elicit) }()
	return got
}

// got checks what the server was told, once everything has settled.
func (r *replicas) got(want ...string) {
	r.t.Helper()
	synctest.Wait()
	var got []string
	for _, answer := range r.s.Seen("POST") {
		got = append(got, string(answer.Message))
	}
	ok := len(got) == len(want)
	for i := range min(len(want), len(got)) {
		ok = ok && strings.Contains(got[i], want[i])
	}
	if !ok {
		r.t.Errorf("the server got %q, want %q", got, want)
	}
}

// silent is a client that does not answer.
func silent() *shimtest.Sink {
	return &shimtest.Sink{OnAsk: func(ctx context.Context, _ ...shim.Question) ([]shim.Answer, error) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}}
}

// What one replica hears belongs to the session's newest call, wherever that runs.
func TestAskedElsewhere(t *testing.T) {
	for _, newer := range []int{0, 1} {
		inReplicas(t, func(t *testing.T, r *replicas) {
			may := make(chan struct{})
			r.s.Tool("t", held(may, true))
			sinks := [2]*shimtest.Sink{{OnAsk: answering}, {OnAsk: answering}}
			older := aloftIn(t, r.legs[1], together(), sinks[1])
			<-r.asked(`1`) // there is no call where it is heard
			if len(sinks[0].Asked()) != 0 || len(sinks[1].Asked()) != 1 {
				t.Errorf("asked %v and %v", sinks[0].Asked(), sinks[1].Asked())
			}
			pauseFor(t, time.Second)
			calls := []*aloft{older}
			if newer == 1 {
				pauseFor(t, time.Second)
				calls = append(calls, aloftIn(t, r.legs[0], together(), &shimtest.Sink{}))
				pauseFor(t, time.Second)
			}
			last := &shimtest.Sink{OnAsk: answering}
			calls = append(calls, aloftIn(t, r.legs[newer], together(), last))
			pauseFor(t, time.Second)
			<-r.asked(`2`)
			if len(last.Asked()) != 1 {
				t.Errorf("newest on replica %d: asked %v", newer, last.Asked())
			}
			r.got(`"id":1,"result"`, `"id":2,"result"`)
			close(may)
			for _, c := range calls {
				c.ended(t)
			}
		})
	}
}

// A question that nobody runs a call for is refused, after a moment and once, and so is
// one that the session's client did not declare, at once.
func TestAskedElsewhereNobody(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		begin := time.Now()
		<-r.asked(`1`)
		if took := time.Since(begin); took < offerFor || took > 2*offerFor {
			t.Errorf("after %v", took)
		}
		begin = time.Now()
		r.s.Request(`2`, "tasks/list", `{}`)
		if took := time.Since(begin); took != 0 {
			t.Errorf("after %v", took)
		}
		r.got(`"id":1,"error":{"code":-32601`, `"id":2,"error":{"code":-32601`)
	})
}

// A replica that misses a word is told again.
func TestAskedElsewhereMissed(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		may := make(chan struct{})
		r.s.Tool("t", held(may, true))
		sink := &shimtest.Sink{OnAsk: answering}
		r.offers[1].deaf = 2
		c := aloftIn(t, r.legs[1], together(), sink)
		<-r.asked(`1`)
		r.got(`"id":1,"result"`)
		close(may)
		c.ended(t)
	})
}

// What becomes of a question on another replica: the server has one answer, or none if
// it has withdrawn it.
func TestAskedElsewhereAndOver(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(r *replicas, may chan struct{}, f *aloft)
		told []string
	}{
		"answered":  {func(_ *replicas, may chan struct{}, _ *aloft) { close(may) }, []string{"-32603"}},
		"cancelled": {func(_ *replicas, may chan struct{}, f *aloft) { f.cancel(shim.ErrCancelled) }, []string{"-32603"}},
		"withdrawn": {func(r *replicas, may chan struct{}, _ *aloft) {
			r.s.Notify("notifications/cancelled", `{"requestId":1}`)
			synctest.Wait()
			close(may)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inReplicas(t, func(t *testing.T, r *replicas) {
				may := make(chan struct{})
				r.s.Tool("t", held(may, true))
				sink := silent()
				f := aloftIn(t, r.legs[1], together(), sink)
				r.asked(`1`)
				pauseFor(t, 2*time.Second)
				if len(sink.Asked()) != 1 {
					t.Fatalf("asked %v", sink.Asked())
				}
				c.end(r, may, f)
				<-f.done
				pauseFor(t, 2*time.Second)
				r.got(c.told...)
				if name == "cancelled" {
					close(may)
				}
			})
		})
	}
}

// A question that the server withdraws before anybody has it is nobody's.
func TestAskedElsewhereWithdrawnAtOnce(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		r.asked(`1`)
		synctest.Wait()
		r.s.Notify("notifications/cancelled", `{"requestId":1}`)
		pauseFor(t, time.Minute)
		r.got()
	})
}

// resumable is a tool whose call can be gone on with elsewhere.
func resumable(may <-chan struct{}) fake.Behaviour {
	return func(x *fake.Exchange) {
		x.Run()
		x.Resumable(0, 0, func(send func(string)) {
			send(`{"jsonrpc":"2.0","method":"notifications/x"}`)
			<-may
			send(x.Fill(result))
		})
	}
}

// A call that has taken a question takes it along to whoever goes on with it, and the
// client is asked again under the same key, on the replica that heard it too.
func TestAskedElsewhereAndAdopted(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		may := make(chan struct{})
		r.s.Tool("t", resumable(may))
		was, is := silent(), &shimtest.Sink{OnAsk: answering}
		f := aloftIn(t, r.legs[1], together(), was)
		r.asked(`1`)
		pauseFor(t, 2*time.Second)
		f.cancel(shim.ErrDetached)
		<-f.done
		r.got()
		r.s.On("GET", nil)
		done := make(chan error, 1)
		go func() {
			_, err := r.legs[0].Resume(t.Context(), together(), was.Latest(), is)
			done <- err
		}()
		pauseFor(t, 2*time.Second)
		r.got(`"id":1,"result"`)
		close(may)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if a, b := was.Asked(), is.Asked(); len(a) != 1 || len(b) != 1 || a[0].Key != b[0].Key {
			t.Errorf("asked %v, then %v", a, b)
		}
	})
}

// A replica that is lost while it takes a question has it in the checkpoint of its call,
// or has not taken it: then it was refused by the one that heard it, and whoever goes on
// with the call does not ask it again.
func TestAskedElsewhereAndLost(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		may := make(chan struct{})
		r.s.Tool("t", resumable(may))
		was, is := silent(), silent()
		f := aloftIn(t, r.legs[1], together(), was)
		pauseFor(t, time.Second)
		was.OnCheckpoint = func(json.RawMessage) error {
			r.offers[1].fails(errors.New("away")) // it has read the question, and does no more
			return nil
		}
		<-r.asked(`1`)
		r.got(`-32601`)
		f.cancel(shim.ErrDetached)
		<-f.done
		if !strings.Contains(string(was.Latest()), `"pending"`) {
			t.Errorf("checkpoint %s", was.Latest())
		}
		r.s.On("GET", nil)
		done := make(chan error, 1)
		go func() {
			_, err := r.legs[0].Resume(t.Context(), together(), was.Latest(), is)
			done <- err
		}()
		pauseFor(t, time.Second)
		close(may)
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.got(`-32601`)
		if len(is.Asked()) != 0 || strings.Contains(string(is.Latest()), `"pending"`) {
			t.Errorf("asked %v, checkpoint %s", is.Asked(), is.Latest())
		}
	})
}

// While the store is away nobody knows who has a question: a call here asks it when it
// is back, and without a call here it is refused, once.
func TestAskedElsewhereStoreAway(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		may := make(chan struct{})
		r.s.Tool("t", held(may, true))
		sink := &shimtest.Sink{OnAsk: answering}
		f := aloftIn(t, r.legs[0], together(), sink)
		r.offers[0].fails(errors.New("away"))
		r.asked(`1`)
		pauseFor(t, time.Minute)
		r.got()
		r.offers[0].fails(nil)
		pauseFor(t, time.Minute)
		r.got(`"id":1,"result"`)
		close(may)
		f.ended(t)
		pauseFor(t, time.Minute)
		r.offers[0].fails(errors.New("away"))
		r.asked(`2`)
		pauseFor(t, offerKept+time.Minute)
		r.got(`"id":1,"result"`, `"id":2,"error":{"code":-32603`)
	})
}

// A leg that closes answers what it has put up, and a call that ends what it was asked.
func TestAskedElsewhereClosed(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		r.asked(`1`)
		synctest.Wait()
		if err := r.legs[0].Close(context.Background()); err != nil {
			t.Error(err)
		}
		r.got(`-32601`)
	})
	inReplicas(t, func(t *testing.T, r *replicas) {
		may := make(chan struct{})
		r.s.Tool("t", held(may, true))
		f := aloftIn(t, r.legs[0], together(), silent())
		r.asked(`1`)
		synctest.Wait() // it is about to be asked
		close(may)
		f.ended(t)
		r.got(`-32603`)
	})
}

// A call that ends just when another replica has taken its question leaves the answer to
// that one.
func TestAskedElsewhereTakenAtTheEnd(t *testing.T) {
	inReplicas(t, func(t *testing.T, r *replicas) {
		may, later := make(chan struct{}), make(chan struct{})
		r.s.Tool("t", func(x *fake.Exchange) {
			if x.Arg("key") == "later" {
				held(later, true)(x)
				return
			}
			held(may, true)(x)
		})
		older, newer := silent(), &shimtest.Sink{OnAsk: answering}
		one := aloftIn(t, r.legs[0], together(), older)
		pauseFor(t, time.Second)
		q := together()
		q.Params = json.RawMessage(`{"name":"t","arguments":{"key":"later"}}`)
		two := aloftIn(t, r.legs[1], q, newer)
		pauseFor(t, time.Second)
		r.asked(`1`)
		synctest.Wait()
		close(may)
		one.ended(t)
		pauseFor(t, time.Second)
		r.got(`"id":1,"result"`)
		if len(older.Asked()) != 0 {
			t.Errorf("asked %v", older.Asked())
		}
		close(later)
		two.ended(t)
	})
}
