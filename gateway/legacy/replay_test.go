package legacy_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// A client that has resumed the stream on which it waits for a result is asked there what
// the task asks from then on, at either replica, and not again what it was asked before.
func TestQuestionsOfAResumedResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		for _, g := range []*legacyServer{w.a, w.b} {
			task := w.c.call(w.a, "twice")
			first := w.result(w.a, task)
			first.wantAsked("the first stream", nth(task, 0))
			first.leave() // the replica goes on with the request
			wiretest.Wait(time.Second)
			again := w.resume(g, first)
			wiretest.Wait(time.Second)
			again.wantAsked("resumed")
			w.answer(w.a, nth(task, 0))
			wiretest.Wait(time.Minute)
			again.wantAsked("the second question", nth(task, 1))
			again.leave() // and once more
			wiretest.Wait(time.Second)
			last := w.resume(w.b, again)
			wiretest.Wait(time.Minute)
			last.wantAsked("resumed twice")
			w.answer(w.a, nth(task, 1))
			wiretest.Wait(time.Second)
			last.wantOnly("accept")
			w.closing(first, again, last)
		}
	})
}

// Of a stream that is resumed a client does not get the questions that nobody waits for
// any more, and of those that it has it is told.
func TestDeadQuestionsAreNotAskedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(w *world, task shim.ID)
		over bool // the client, which has the question, is told
	}{
		"answered elsewhere": {func(w *world, task shim.ID) { w.answer(w.b, nth(task, 0)) }, false},
		"cancelled": {func(w *world, task shim.ID) {
			w.c.do(w.b, mcp.MethodTasksCancel, `{"taskId":"`+string(task)+`"}`)
		}, true},
		"out of time": {func(*world, shim.ID) { wiretest.Wait(11 * time.Minute) }, true},
	} {
		inBubble(t, name, func(t *testing.T) {
			w := newAskWorld(t, func(c *config.Config) { c.Upstreams[0].Defaults.InputTimeout = 10 * time.Minute })
			get := w.c.begin(w.a, "")
			task := w.c.call(w.a, "ask")
			wiretest.Wait(2 * time.Second)
			get.wantAsked("the stream", nth(task, 0))
			get.quit()
			c.end(w, task)
			primed, _, _ := strings.Cut(get.lastID(), ".")
			lacks := w.c.begin(w.b, "", mcp.HeaderLastEventID, primed+".0")
			wiretest.Wait(time.Second)
			for _, id := range lacks.asked() {
				if !strings.HasPrefix(id, "-") {
					t.Errorf("a client that lacks it is asked %s", id)
				}
			}
			lacks.quit()
			has := w.resume(w.a, get)
			wiretest.Wait(time.Second)
			if c.over {
				has.wantAsked("to a client that has it", "-"+nth(task, 0))
			} else {
				has.wantAsked("to a client that has answered")
			}
			w.closing(has)
		})
	}
}

// What waits for a slow client when its stream breaks is not asked on the next one if
// nobody waits for it by then.
func TestDeadQuestionsOfTheOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		get := w.c.begin(w.a, "")
		tasks := []shim.ID{w.c.call(w.a, "ask")}
		wiretest.Wait(5 * time.Second)
		get.w.hold()
		for range 3 {
			tasks = append(tasks, w.c.call(w.a, "ask"))
			wiretest.Wait(5 * time.Second)
		}
		get.leave()
		get.w.fail()
		get.w.letGo()
		<-get.done
		for _, task := range tasks[:3] {
			w.answer(w.a, nth(task, 0))
		}
		wiretest.Wait(time.Second)
		next := w.c.begin(w.a, "")
		wiretest.Wait(5 * time.Second)
		next.wantAsked("the next stream", nth(tasks[3], 0))
		w.closing(next)
	})
}

// A call that has asked on its own stream asks nothing there any more that was answered
// or withdrawn when its client comes back.
func TestDeadQuestionsOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		call := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"twice"}`)
		wiretest.Wait(time.Second)
		asked := call.asked()
		if len(asked) != 1 {
			t.Fatalf("asked %v", asked)
		}
		primed := call.firstID()
		call.leave()
		wiretest.Wait(time.Second)
		w.answer(w.b, asked[0])
		wiretest.Wait(time.Second)
		again := w.c.begin(w.b, "", mcp.HeaderLastEventID, primed)
		wiretest.Wait(time.Second)
		again.wantAsked("resumed", strings.Replace(asked[0], "/q0", "/q1", 1))
		w.answer(w.b, again.asked()[0])
		wiretest.Wait(time.Second)
		said := again.said()
		if id, _ := jsonrpc.Get(said[len(said)-1], "result"); id == nil || again.w.status > http.StatusOK {
			t.Errorf("the end: %s", said)
		}
		w.closing(call, again)
	})
}
