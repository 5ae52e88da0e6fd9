package engine_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/engine"
)

// relayed is a Stream that questions are sent on.
type relayed struct {
	mu        sync.Mutex
	id        shim.ID
	asked     []shim.Question
	withdrawn []string
	progress  int
}

func (r *relayed) Progress(shim.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress++
}
func (r *relayed) Log(shim.Log)              {}
func (r *relayed) Completed(json.RawMessage) {}
func (r *relayed) Ask(id shim.ID, q []shim.Question) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id, r.asked = id, append(r.asked, q...)
}
func (r *relayed) Withdrawn(_ shim.ID, keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withdrawn = append(r.withdrawn, keys...)
}

// legacy is a plain call of a client that is asked on the call's stream.
func legacy(stream shim.Stream) shim.Call {
	c := askable(shim.AskStream)
	c.Principal = shim.Principal{Session: "1"}
	c.Block, c.Stay, c.Stream = true, true, stream
	return c
}

// calling is a call under way.
type calling struct {
	done chan struct{}
	a    shim.Answered
	err  error
}

func calls(t *testing.T, s *engine.Shim, c shim.Call) *calling {
	k := goes(func() (shim.Answered, error) { return s.Call(t.Context(), c) })
	synctest.Wait()
	return k
}

func goes(call func() (shim.Answered, error)) *calling {
	k := &calling{done: make(chan struct{})}
	go func() {
		defer close(k.done)
		k.a, k.err = call()
	}()
	return k
}

func TestQuestionsOnTheCallsStream(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(time.Second, "a", "b", "s")
		s, other := w.gateway("r1", u, policy(shim.Auto)), w.gateway("r2", u, policy(shim.Auto))
		stream := &relayed{}
		c := legacy(stream)
		k := calls(t, s, c)
		wantKeys(t, stream.asked, "a", "b", "s")
		answer := func(key string, a shim.Answer) {
			t.Helper()
			if err := other.Answer(t.Context(), c.Principal, "up", stream.id, key, a); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
		answer("s", shim.Answer{Error: &shim.RPCError{Code: -1, Message: "rejected", Data: json.RawMessage(`{"n":1.0}`)}})
		answer("b", shim.Answer{Result: json.RawMessage(`{"to":"b"}`)})
		answer("b", shim.Answer{Result: json.RawMessage(`{"to":"b again"}`)})
		answer("x", shim.Answer{Result: json.RawMessage(`{}`)})
		pass(time.Minute)
		if u.delivered() != 0 {
			t.Error("delivered before all was answered")
		}
		answer("a", shim.Answer{Result: json.RawMessage(`{"to":"a"}`)})
		<-k.done
		wantReply(t, k.a, k.err, `{"answers":[{"to":"a"},{"to":"b"},"rejected"]}`)
		if e := u.got[2].Error; e.Code != -1 || string(e.Data) != `{"n":1.0}` {
			t.Errorf("the server got %+v", e)
		}
		answer("a", shim.Answer{Result: json.RawMessage(`{"to":"a"}`)})
		pass(2 * time.Minute)
		w.wantGone(stream.id)
	})
}

func TestQuestionsOnAStreamRunOut(t *testing.T) {
	hours(t, func(t *testing.T, w *world) {
		u := elicits(5*time.Minute, "a")
		s := w.gateway("r1", u, policy(shim.Auto))
		stream := &relayed{}
		k := calls(t, s, legacy(stream))
		pass(10 * time.Minute)
		if fmt.Sprint(stream.withdrawn) != "[a]" {
			t.Errorf("withdrawn: %v", stream.withdrawn)
		}
		<-k.done // there is somebody who waits: it may take its time
		wantReply(t, k.a, k.err, `{"answers":[{"action":"cancel"}]}`)
	})
}

// A call that was asked something goes on over an outage of the store, however long, and
// over a failover that has lost its record: both times its caller gets the result.
func TestAskedCallOutlastsAnOutage(t *testing.T) {
	for name, fault := range map[string]func(*testing.T, *world){
		"outage": func(_ *testing.T, w *world) {
			w.store.down.Store(true)
			time.AfterFunc(90*time.Second, func() { w.store.down.Store(false) })
		},
		"failover": func(t *testing.T, w *world) {
			other := openEmbedded(t)
			w.store.failover.Store(&other)
		},
	} {
		hoursOf(t, name, func(t *testing.T, w *world) {
			s := w.gateway("r1", elicits(20*time.Minute, "a"), policy(shim.Auto))
			stream := &relayed{}
			k := calls(t, s, legacy(stream))
			answerTask(t, s, shim.Principal{Session: "1"}, stream.id, "a", `{"to":"a"}`)
			pass(11 * time.Minute)
			fault(t, w)
			<-k.done
			wantReply(t, k.a, k.err, `{"answers":[{"to":"a"}]}`)
		})
	}
}
