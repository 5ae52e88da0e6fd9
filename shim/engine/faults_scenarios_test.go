package engine_test

import (
	"context"
	"sync"
	"time"

	"taskgate/shim"
)

// scenario is what happens once, on two replicas of which one runs a call, and what must
// hold in the end whatever single fault there was.
type scenario struct {
	name string
	run  func(w *faultWorld)
	// acts: what the client does may happen after any operation (clientActs).
	acts bool
}

var scenarios = []scenario{
	{"completes", completes, false},
	{"insists", insists, false},
	{"answered-first", answeredFirst, false},
	{"cancel", cancelled, true},
	{"question", askedAmid, true},
	{"question-early", askedEarly, false},
	{"question-later", askedLater, false},
	{"parked", parkedCall, false},
	{"parked-task", parkedTask, false},
	{"lost", lostFails, false},
	{"lost-resumed", lostResumed, false},
	{"lost-retried", lostRetried, false},
	{"lost-cancelled", lostCancelled, true},
	{"lost-asked", lostAsked, true},
	{"cut-off", cutOff, false},
	{"lives", lives, false},
	{"progress", progresses, false},
	{"partials", partials, false},
	{"goodbye", goodbyes, false},
}

// pair makes two replicas that serve the same server, and begins.
func (w *faultWorld) pair(s *server, p shim.Policy) (a, b *replica) {
	a, b = w.replica("a", s, p), w.replica("b", s, p)
	w.server = s
	w.begin()
	return a, b
}

// A call becomes a task and ends; who follows it and who waits for it at the other replica
// see that.
func completes(w *faultWorld) {
	s := &server{takes: 3 * time.Second}
	a, b := w.pair(s, policy(shim.Always))
	id := w.task(a, call())
	if id != "" {
		follows, waits := w.follows(b, id, nil), w.awaits(b, id)
		w.wait("who follows sees the end", follows)
		w.wait("who waits sees the end", waits)
	}
	w.settled(id, shim.Completed)
	w.ran(s, 1)
}

// A call is answered while its task may still be being made: nobody runs it again, as its policy
// would allow, where the record comes after all.
func answeredFirst(w *faultWorld) {
	s := &server{takes: 500 * time.Millisecond}
	p := policy(shim.Always)
	p.Retry = true
	a, b := w.pair(s, p)
	id := w.task(a, call())
	if id != "" {
		w.wait("who follows sees the end", w.follows(b, id, nil))
	}
	w.settled(id, shim.Completed)
	w.ran(s, 1)
}

// The same as completes of a caller who gets a task or an error, and then calls again: there is one
// execution for what was acknowledged.
func insists(w *faultWorld) {
	s := &server{takes: 3 * time.Second}
	a, b := w.pair(s, policy(shim.Required))
	var got shim.Answered
	over := w.client(func() {
		err := w.patiently(func() (err error) {
			got, err = a.Call(w.ctx, call())
			return err
		})
		if err != nil && w.ctx.Err() == nil {
			w.Errorf("call: %v", err)
		}
	})
	w.wait("the call is answered", over)
	if got.Task == nil {
		w.Fatalf("no task: %+v", got)
	}
	w.wait("who waits sees the end", w.awaits(b, got.Task.ID))
	w.settled(got.Task.ID, shim.Completed)
	w.ran(s, 1)
}

// act has what a client does happen two seconds after the beginning, or when the fault
// says so. It returns once that is done.
func (w *faultWorld) act(do func()) {
	done := make(chan struct{})
	once := sync.OnceFunc(func() {
		do()
		close(done)
	})
	if w.kind == clientActs {
		w.acting(once)
	} else {
		pass(2 * time.Second)
		w.client(once)
	}
	w.wait("the client's turn", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

// A cancellation at one replica reaches the run at the other, and the server.
func cancelled(w *faultWorld) {
	s := &server{takes: time.Hour}
	a, b := w.pair(s, policy(shim.Always))
	id := w.task(a, call())
	acknowledged := false
	w.act(func() { acknowledged = w.cancels(b, id) })
	if !acknowledged && w.isForgotten(id) { // what is unknown cannot be cancelled
		w.done()
		w.ran(s, 1)
		return
	}
	if !acknowledged {
		w.Error("the cancellation was not acknowledged")
	}
	w.wait("the server is told", s.told)
	w.settled(id, shim.Cancelled)
	if !s.told() {
		w.Error("in the end the server works on")
	}
	w.ran(s, 1)
}

// answerTime is how long a client has to answer: more than anything may stand still.
const answerTime = 90 * time.Second

// A question of a task is answered at the other replica as soon as it can be seen, and
// the server gets the answer once. Who answers after some operation may do so before the
// runner knows that its question is stored, and answers again only if it is asked again.
func askedAmid(w *faultWorld) {
	s := &server{takes: time.Second, asks: true, says: words(500*time.Millisecond, "one")}
	p := policy(shim.Always)
	p.InputTimeout = answerTime
	a, b := w.pair(s, p)
	id := w.task(a, taskCall())
	w.answered(s, id, w.answersAmid(b, id, 0))
}

// answersAmid is answers of a client who answers after some operation, where the fault
// says so, and later only what it is asked then.
func (w *faultWorld) answersAmid(b *replica, id shim.ID, delay time.Duration) (over func() bool) {
	if w.kind == clientActs {
		delay = 5 * time.Second
		w.acting(func() { w.update(b, id) })
	}
	return w.answers(b, id, delay)
}

// A question comes first, and makes the task.
func askedEarly(w *faultWorld) { question(w, 0) }

// The same with an answer that takes a moment.
func askedLater(w *faultWorld) { question(w, 2*time.Second) }

func question(w *faultWorld, delay time.Duration) {
	s := &server{takes: time.Second, asks: true}
	p := policy(shim.Auto)
	p.InputTimeout = answerTime
	a, b := w.pair(s, p)
	id := w.task(a, taskCall())
	w.answered(s, id, w.answers(b, id, delay))
}

// answered waits for the end of a task whose question has been answered.
func (w *faultWorld) answered(s *server, id shim.ID, over func() bool) {
	w.Helper()
	w.ran(s, 1)
	if id == "" {
		w.done()
		return
	}
	w.unknown = answerTime // nobody can answer: the server hears of that when the time is over
	w.wait("the task ends", over)
	if w.kind.back() {
		w.settled(id, shim.Completed, shim.Failed)
		w.wasAnsweredAtMost(s)
	} else {
		w.settled(id, shim.Completed)
		w.wasAnswered(s)
	}
	w.ran(s, 1)
}

// A parked call gets its answer and its result at the other replica.
func parkedCall(w *faultWorld) {
	s := &server{takes: time.Second, asks: true}
	p := policy(shim.Auto)
	p.InputTimeout = answerTime
	a, b := w.pair(s, p)
	c := askable(shim.AskPark)
	if got := w.parks(a, c); got.Parked != nil {
		back, over := w.comesBack(b, c, got.Parked.ID)
		w.wait("the caller who came back is answered", over)
		if r := back.Reply; !w.kind.back() && r.Error != nil || r.Result != nil && string(r.Result) != result {
			w.Errorf("the reply is %s, %v", r.Result, r.Error)
		}
	}
	w.done()
	w.wasAnsweredAtMost(s)
	w.ran(s, 1)
}

// parks makes a call that is handed back with a question, or, where that took longer than
// its grace, with a task.
func (w *faultWorld) parks(r *replica, c shim.Call) shim.Answered {
	w.Helper()
	var got shim.Answered
	var err error
	w.wait("the call is parked", w.client(func() { got, err = r.Call(w.ctx, c) }))
	if err != nil || got.Task == nil && got.Parked == nil {
		w.Fatalf("not parked: %+v, %v", got, err)
	}
	return got
}

// A parked call becomes a task at the other replica once it is answered.
func parkedTask(w *faultWorld) {
	s := &server{takes: 3 * time.Second, asks: true}
	p := policy(shim.Auto)
	p.EarlyInput, p.InputTimeout, p.Grace = shim.EarlyMRTR, answerTime, time.Second
	a, b := w.pair(s, p)
	c := taskCall()
	got := w.parks(a, c)
	switch {
	case got.Task != nil:
		w.answered(s, got.Task.ID, w.answers(b, got.Task.ID, 0))
		return
	case got.Parked != nil:
		back, over := w.comesBack(b, c, got.Parked.ID)
		w.wait("the caller who came back is answered", over)
		got = *back
	}
	if got.Task == nil {
		w.done()
		w.wasAnsweredAtMost(s)
		w.ran(s, 1)
		return
	}
	w.tells(*got.Task)
	w.answered(s, got.Task.ID, w.awaits(b, got.Task.ID))
}

// orphan makes a task whose replica dies two seconds later.
func (w *faultWorld) orphan(s *server, p shim.Policy, c shim.Call) (id shim.ID, b *replica) {
	a, b := w.pair(s, p)
	id = w.task(a, c)
	pass(2 * time.Second)
	w.breaks.Store(true)
	w.dies(a)
	return id, b
}

// A task of a replica that has died fails, since nothing can be learned of its call.
func lostFails(w *faultWorld) {
	s := &server{takes: time.Hour}
	id, b := w.orphan(s, policy(shim.Always), call())
	if id != "" {
		w.wait("who follows sees the end", w.follows(b, id, nil))
		w.settled(id, shim.Failed)
	}
	w.ran(s, 1)
}

// Or another replica resumes it.
func lostResumed(w *faultWorld) {
	s := &server{takes: 12 * time.Second, resumable: true}
	id, b := w.orphan(s, policy(shim.Always), call())
	if id != "" {
		w.wait("who follows sees the end", w.follows(b, id, nil))
		w.settled(id, shim.Completed)
	}
	w.ran(s, 1)
}

// Or it is run again, as its policy allows: no more often than that, and by one replica
// at a time.
func lostRetried(w *faultWorld) {
	s := &server{takes: 6 * time.Second}
	p := policy(shim.Always)
	p.Retry = true
	id, b := w.orphan(s, p, call())
	if id != "" {
		w.wait("who follows sees the end", w.follows(b, id, nil))
		w.settled(id, shim.Completed)
	}
	w.ran(s, 3)
}

// A task is cancelled while another replica adopts it.
func lostCancelled(w *faultWorld) {
	s := &server{takes: time.Hour, resumable: true}
	id, b := w.orphan(s, policy(shim.Always), call())
	if w.kind != clientActs {
		pass(2500 * time.Millisecond) // it is about to be adopted
	}
	acknowledged := false
	w.act(func() { acknowledged = w.cancels(b, id) })
	switch {
	case acknowledged:
	case w.isForgotten(id): // what is unknown cannot be cancelled
		w.done()
		w.ran(s, 1)
		return
	case !w.mayFail(id):
		w.Error("the cancellation was not acknowledged")
	}
	// Where it came before the adoption nobody is connected to the server any more.
	w.wait("the call ends", func() bool { return has(s, func(s *server) bool { return s.now == 0 }) })
	w.settled(id, shim.Cancelled)
	if has(s, func(s *server) bool { return s.now > 0 }) {
		w.Error("in the end the server works on")
	}
	w.ran(s, 1)
}

// The question of a task is answered before another replica adopts that.
func lostAsked(w *faultWorld) {
	s := &server{takes: time.Second, asks: true, resumable: true}
	p := policy(shim.Auto)
	p.InputTimeout = answerTime
	id, b := w.orphan(s, p, taskCall())
	if id != "" {
		w.answered(s, id, w.answersAmid(b, id, time.Second))
	}
}

// A replica is cut off from the store for so long that the other one adopts its task, and
// then is back.
func cutOff(w *faultWorld) {
	s := &server{takes: 18 * time.Second, resumable: true}
	a, b := w.pair(s, policy(shim.Always))
	id := w.task(a, call())
	if id != "" {
		pass(4 * time.Second) // its checkpoint is stored, also where its creation took longer
		w.breaks.Store(true)
		a.link.set(true)
		pass(12 * time.Second)
		a.link.set(false)
		w.wait("who follows sees the end", w.follows(b, id, nil))
		w.settled(id, shim.Completed)
	}
	w.ran(s, 1)
}

// Both replicas run a task that cannot be resumed, and nothing happens: nobody takes
// anything from anybody.
func lives(w *faultWorld) {
	one, two := &server{takes: 18 * time.Second}, &server{takes: 18 * time.Second}
	a, b := w.replica("a", one, policy(shim.Always)), w.replica("b", two, policy(shim.Always))
	w.server = one
	first, second := w.task(a, call()), w.task(b, call())
	w.begin()
	pass(9 * time.Second)
	overOne, overTwo := w.awaits(b, first), w.awaits(a, second)
	w.wait("the first task ends", overOne)
	w.wait("the second task ends", overTwo)
	w.settled(first, shim.Completed)
	w.settled(second, shim.Completed)
	w.ran(one, 1)
	w.ran(two, 1)
}

// The newest status message, progress and checkpoint are what is stored in the end.
func progresses(w *faultWorld) {
	s := &server{takes: 2 * time.Minute, says: words(700*time.Millisecond, "one", "two", "three", "four", "five")}
	a, b := w.pair(s, policy(shim.Always))
	id := w.task(a, wished())
	if w.kind.back() { // messages are not written again (docs/operations.md, "Failover")
		pass(6 * time.Second)
	} else {
		w.wait("the newest is stored", func() bool { return newest(w.record(b, id), s) })
	}
	w.done()
	if got := w.record(b, id); !w.kind.back() && !newest(got, s) {
		w.Errorf("in the end there is %q %s %s", got.StatusMessage, got.Checkpoint, got.Progress.Params)
	}
	w.ran(s, 1)
}

// What a server says reaches a client at the other replica in order, each piece once.
func partials(w *faultWorld) {
	s := &server{takes: time.Second, says: words(500*time.Millisecond, "a", "b", "c", "d", "e", "f")}
	a, b := w.pair(s, streaming(false))
	id := w.task(a, partialsCall())
	if id != "" {
		w.wait("all pieces have come", w.streamed(b, shim.Tracked{ID: id, Pieces: true}, "a b c d e f"))
	}
	w.done()
	w.ran(s, 1)
}

// A replica that stops leaves its task to the other one.
func goodbyes(w *faultWorld) {
	s := &server{takes: 8 * time.Second, resumable: true}
	a, b := w.pair(s, policy(shim.Always))
	id := w.task(a, call())
	if id != "" {
		follows := w.follows(b, id, nil)
		pass(2 * time.Second)
		w.breaks.Store(true)
		a.stop()
		w.wait("the replica has stopped", w.client(func() {
			for range 3 { // as who stops it may
				ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
				err := a.Close(ctx)
				stop()
				if err == nil {
					return
				}
			}
		}))
		w.dies(a)
		w.wait("who follows sees the end", follows)
		w.settled(id, shim.Completed)
	}
	w.ran(s, 1)
}
