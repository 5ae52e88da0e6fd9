package legacy_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/gateway/legacy"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// A question whose stream died with its replica is asked on another stream that waits,
// though nothing else happens. It is only looked after while there is such a question.
func TestQuestionOfALostStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		idle := w.result(w.b, w.c.call(w.b, "forever"))
		wiretest.Wait(time.Minute)
		if n := w.sessions.looks.Swap(0); n != 0 {
			t.Errorf("looked %d times after nothing", n)
		}
		idle.leave()
		task := w.c.call(w.a, "ask")
		first := w.result(w.a, task)
		first.wantAsked("the first stream", nth(task, 0))
		second := w.result(w.b, task)
		w.sessions.looks.Swap(0)
		wiretest.Wait(10 * legacy.HolderCheck)
		second.wantAsked("while the first one lives")
		if n := w.sessions.looks.Swap(0); n < 9 || n > 12 {
			t.Errorf("looked %d times after the first stream", n)
		}
		w.sessions.kill()
		wiretest.Wait(3 * legacy.HolderCheck)
		second.wantAsked("after its death", nth(task, 0))
		w.answer(w.b, nth(task, 0))
		wiretest.Wait(time.Second)
		if said := second.said(); !strings.Contains(string(said[len(said)-1]), "accept") {
			t.Errorf("the end: %s", said)
		}
		w.sessions.looks.Swap(0)
		wiretest.Wait(time.Minute)
		if n := w.sessions.looks.Swap(0); n != 0 {
			t.Errorf("looked %d times after the end", n)
		}
		w.closing(first, second, idle)
	})
}

// A client whose stream ended may be about to resume it: its questions are not asked on
// another stream at once.
func TestQuestionOfABrokenGetStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		get := w.c.begin(w.a, "")
		task := w.c.call(w.a, "ask")
		wiretest.Wait(2 * time.Second)
		get.wantAsked("the GET stream", nth(task, 0))
		result := w.result(w.b, task)
		wiretest.Wait(legacy.HolderCheck - time.Second)
		get.quit()
		wiretest.Wait(3 * time.Second) // a check falls in between
		again := w.resume(w.b, get)
		wiretest.Wait(time.Minute)
		result.wantAsked("on the other stream")
		again.wantAsked("again")
		w.answer(w.a, nth(task, 0))
		wiretest.Wait(time.Second)
		if !result.ended() {
			t.Error("no end")
		}
		w.closing(again, result)
	})
}

// A client that resumes its GET stream is asked what never got into its log, and nothing
// that did.
func TestQuestionThatIsNotInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		get := w.c.begin(w.a, "")
		has := w.c.call(w.a, "ask")
		wiretest.Wait(2 * time.Second)
		get.wantAsked("the GET stream", nth(has, 0))
		get.quit()
		lacks := w.c.call(w.a, "ask")
		wiretest.Wait(time.Second)
		again := w.resume(w.b, get)
		wiretest.Wait(time.Minute)
		again.wantAsked("resumed", nth(lacks, 0))
		w.answer(w.a, nth(has, 0))
		w.answer(w.a, nth(lacks, 0))
		wiretest.Wait(time.Second)
		for _, id := range []shim.ID{has, lacks} {
			if got := string(w.c.do(w.a, mcp.MethodTasksGet, `{"taskId":"`+string(id)+`"}`)); !strings.Contains(got, "completed") {
				t.Errorf("%s: %s", id, got)
			}
		}
		w.closing(again)
	})
}

// A question is asked once, on whichever stream, also where the store was away for a moment, or
// took the question and could not say so any more.
func TestQuestionWhileTheStoreIsAway(t *testing.T) {
	streams := map[string]func(w *world) *hearing{
		"call":         func(w *world) *hearing { return w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"ask"}`) },
		"tasks/result": func(w *world) *hearing { return w.result(w.a, w.c.call(w.b, "ask")) },
		"GET": func(w *world) *hearing {
			get := w.c.begin(w.a, "")
			w.c.call(w.b, "ask")
			return get
		},
	}
	faults := map[string]func(*faultySessions){
		"no stream is opened": func(f *faultySessions) { f.unopened.Store(2) },
		"the reply is lost":   func(f *faultySessions) { f.mute.Store(2) },
	}
	for where, begin := range streams {
		for what, fault := range faults {
			inBubble(t, where+"/"+what, func(t *testing.T) {
				w := newAskWorld(t, nil)
				fault(w.sessions)
				first := begin(w)
				wiretest.Wait(10 * time.Second)
				asked := first.asked()
				if len(asked) != 1 {
					t.Fatalf("asked %v", asked)
				}
				w.answer(w.b, asked[0])
				wiretest.Wait(5 * time.Second)
				if said := first.said(); where != "GET" && !strings.Contains(string(said[len(said)-1]), "accept") {
					t.Errorf("the end: %s", said)
				}
				first.wantAsked("in the end", asked...)
				w.closing(first)
			})
		}
	}
}

// A question that is in the log, but never went out because the store's answer was lost and
// the wait was over then, is asked in the next wait.
func TestQuestionAtTheEndOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, handling)
		_, task := w.handle("late")
		w.sessions.mute.Store(1000)
		first := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"task_result","arguments":{"taskId":"`+string(task)+`","waitSeconds":14.5}}`)
		wiretest.Wait(20 * time.Second)
		first.wantAsked("at the end of the wait")
		if w.sessions.mute.Load() == 1000 || !first.ended() {
			t.Fatal("the question did not come at the end of the wait")
		}
		w.sessions.mute.Store(0)
		again := w.read(w.c, w.b, task)
		wiretest.Wait(time.Second)
		again.wantAsked("in the next wait", nth(task, 0))
		w.closing(again)
	})
}

// A client that counts partial results, and whose GET stream began while the store was away,
// hears no questions there. The stream ends once the store is back, and the next one asks them.
func TestQuestionOnAStreamWithoutALog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, func(c *config.Config) { *c = *draftConfig(t) })
		w.c = newClient(t, w.a, takePartial+`,"elicitation":{}`)
		w.sessions.unopened.Store(1)
		get := w.c.begin(w.a, "")
		task := w.c.call(w.b, "ask")
		wiretest.Wait(5 * time.Second)
		if !get.ended() {
			t.Fatal("the stream goes on without a log, though the store is back")
		}
		get.wantAsked("without a log")
		next := w.c.begin(w.a, "")
		wiretest.Wait(time.Second)
		next.wantAsked("on the next stream", nth(task, 0))
		w.closing(get, next)
	})
}

// again is a stream that is given each question twice, as one that the store has forgotten is.
type again struct{ shim.Asker }

func (a again) Ask(id shim.ID, q []shim.Question) {
	a.Asker.Ask(id, q)
	a.Asker.Ask(id, q)
}

// A question that the store has forgotten is not put again to a client that has it, or is about to get it.
func TestQuestionOfACallThatWasForgotten(t *testing.T) {
	for name, away := range map[string]int64{"asked": 0, "to be asked": 2} {
		inBubble(t, name, func(t *testing.T) {
			w := newAskWorld(t, nil)
			w.asks = func(s shim.Asker) shim.Asker { return again{s} }
			w.a = w.gateway("again", w.a.up.script, newConfig(nil))
			w.sessions.unopened.Store(away)
			call := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"ask"}`)
			wiretest.Wait(10 * time.Second)
			if asked := call.asked(); len(asked) != 1 {
				t.Errorf("asked %v", asked)
			}
			w.closing(call)
		})
	}
}

// A stream whose time for a log came while the store was away has one once that is back: it can be resumed.
func TestStandingIsKeptLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		w.config.ResumeAfter = time.Second
		w.sessions.unopened.Store(5)
		get := w.c.begin(w.a, "")
		wiretest.Wait(time.Minute)
		if w.sessions.unopened.Load() > 0 || get.lastID() == "" {
			t.Error("the stream cannot be resumed")
		}
		w.closing(get)
	})
}

// A question that the GET stream has left unasked for its time is asked on tasks/result at once,
// also where no wait there lasts that long.
func TestQuestionThatTheGetStreamDoesNotAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		w.sessions.shy.Store(true)
		get := w.c.begin(w.a, "")
		task := w.c.call(w.b, "ask")
		first := w.result(w.b, task)
		wiretest.Wait(1500 * time.Millisecond)
		first.wantAsked("within the time of the GET stream")
		first.leave()
		wiretest.Wait(time.Second)
		again := w.result(w.b, task)
		wiretest.Wait(100 * time.Millisecond)
		again.wantAsked("after that", nth(task, 0))
		w.closing(get, again)
	})
}
