package engine_test

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"taskgate/shim"
)

// stuck is a stream whose client does not read: what is written to it waits for free.
type stuck struct {
	relayed
	asked chan shim.ID
	free  chan struct{}
}

func (s *stuck) Ask(id shim.ID, q []shim.Question) {
	s.asked <- id
	<-s.free
}

// soon waits for something that takes no time of its own. The bubble's clock would stand
// still for whoever waits for a lock.
func soon[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("timed out: %s", what)
	}
	return v
}

// TestSlowClientHoldsUpNoOther: a replica has one inbox for all that it runs. What others
// do to a call whose client does not read, is not waited for by the other calls.
func TestSlowClientHoldsUpNoOther(t *testing.T) {
	w := newWorld(t)
	defer w.close()
	slow, quick := elicits(0, "a"), elicits(0, "b")
	u := &scripted{call: slow.call}
	s, other := w.gateway("r1", u, policy(shim.Auto)), w.gateway("r2", u, policy(shim.Auto))
	call := func(stream shim.Stream) *calling {
		return goes(func() (shim.Answered, error) { return s.Call(t.Context(), legacy(stream)) })
	}
	answer := func(id shim.ID, key string) {
		t.Helper()
		result := shim.Answer{Result: json.RawMessage(`{"to":"` + key + `"}`)}
		must(t, other.Answer(t.Context(), legacy(nil).Principal, "up", id, key, result))
	}

	held := &stuck{asked: make(chan shim.ID), free: make(chan struct{})}
	free := sync.OnceFunc(func() { close(held.free) })
	defer free()
	first := call(held)
	answer(soon(t, held.asked, "the first question"), "a")

	u.call = quick.call
	reads := &stuck{asked: make(chan shim.ID), free: make(chan struct{})}
	close(reads.free)
	second := call(reads)
	answer(soon(t, reads.asked, "the second question"), "b")
	soon(t, second.done, "the end of a call beside one whose client does not read")
	wantReply(t, second.a, second.err, `{"answers":[{"to":"b"}]}`)

	free()
	soon(t, first.done, "the end of the call whose client reads again")
	wantReply(t, first.a, first.err, `{"answers":[{"to":"a"}]}`)
}
