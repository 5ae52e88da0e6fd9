package legacy_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

func handling(c *config.Config) { c.Upstreams[0].WithoutTasks = config.WithoutTasksHandle }

// handle makes a call that becomes a task, of which its client is told in words.
func (w *world) handle(tool string) (call *hearing, task shim.ID) {
	w.t.Helper()
	call = w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"`+tool+`"}`)
	wiretest.Wait(46 * time.Second)
	said := call.said()
	_, id, ok := strings.Cut(string(said[len(said)-1]), `{\"taskId\":\"`)
	if !ok || !call.ended() {
		w.t.Fatalf("no handle: %s", said)
	}
	return call, shim.ID(id[:strings.IndexByte(id, '\\')])
}

// read begins to wait for a task by the gateway's own tool.
func (w *world) read(c *taskClient, g *legacyServer, task shim.ID) *hearing {
	w.t.Helper()
	return c.ask(g, mcp.MethodToolsCall, `{"name":"task_result","arguments":{"taskId":"`+string(task)+`"}}`)
}

// A client that was asked on the stream of its call has the question when it is told that
// the call has become a task, and is not asked again while it waits for that.
func TestQuestionOfACallThatBecomesATask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, handling)
		call, task := w.handle("ask")
		call.wantAsked("on the stream of the call", nth(task, 0))
		for _, g := range []*legacyServer{w.b, w.a} {
			r := w.read(w.c, g, task)
			wiretest.Wait(46 * time.Second)
			r.wantAsked("on that of the tool that reads it")
			if said := string(r.said()[0]); !strings.Contains(said, "input_required") {
				t.Errorf("after waiting: %s", said)
			}
		}
		last := w.read(w.c, w.b, task)
		w.answer(w.a, nth(task, 0))
		wiretest.Wait(time.Second)
		if said := string(last.said()[0]); !strings.Contains(said, "accept") {
			t.Errorf("the result: %s", said)
		}
	})
}

// What a client was asked while it waited for a task, it still has when it waits again.
// Another session of the caller is asked: the client may have begun anew.
func TestQuestionOfATaskThatIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, handling)
		_, task := w.handle("late")
		first := w.read(w.c, w.a, task)
		wiretest.Wait(46 * time.Second)
		first.wantAsked("the first time", nth(task, 0))
		again := w.read(w.c, w.b, task)
		wiretest.Wait(46 * time.Second)
		again.wantAsked("the second time")
		if !again.ended() {
			t.Error("no answer")
		}
		anew := newClient(t, w.b, `"elicitation":{}`)
		other := w.read(anew, w.b, task)
		wiretest.Wait(time.Second)
		other.wantAsked("in another session", nth(task, 0))
		w.answer(w.a, nth(task, 0))
		wiretest.Wait(time.Second)
		if said := other.said(); !strings.Contains(string(said[len(said)-1]), "accept") {
			t.Errorf("the result: %s", said)
		}
	})
}

// A client that has gone amid its wait is asked again when it comes back: what was sent to
// it may not have come.
func TestQuestionOfAReaderThatHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, handling)
		_, task := w.handle("late")
		first := w.read(w.c, w.a, task)
		wiretest.Wait(20 * time.Second)
		first.quit()
		first.wantAsked("the first time", nth(task, 0))
		again := w.read(w.c, w.b, task)
		wiretest.Wait(time.Second)
		again.wantAsked("the second time", nth(task, 0))
		w.closing(again)
	})
}

// An answer that waits for a task is given up when its client goes: nothing of it is left on
// the replica. The client resumes its stream at any replica, and is answered there, once.
func TestAbandonedResultIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		for _, g := range []*legacyServer{w.b, w.a} {
			task := w.c.call(w.a, "ask")
			first := w.result(w.a, task)
			wiretest.Wait(10 * time.Second)
			first.wantAsked("the first stream", nth(task, 0))
			first.leave()
			wiretest.Wait(time.Second)
			if !first.ended() || tableOf(w.a.Gateway).Busy(w.c.session) {
				t.Error("the replica goes on with what nobody waits for")
			}
			again := w.resume(g, first)
			wiretest.Wait(time.Minute)
			again.wantAsked("resumed")
			w.answer(w.b, nth(task, 0))
			wiretest.Wait(time.Second)
			again.wantOnly("accept")
			last := w.resume(w.a, first)
			wiretest.Wait(time.Second)
			if said := last.said(); len(said) != 1 || !last.ended() {
				t.Errorf("resumed once more: %s", said)
			}
		}
	})
}

// A client may resume the stream before its replica has noticed that it is gone: that one
// answers no more, and asks no more.
func TestResultResumedUnnoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newAskWorld(t, nil)
		task := w.c.call(w.a, "twice")
		first := w.result(w.a, task)
		wiretest.Wait(10 * time.Second)
		again := w.resume(w.a, first)
		wiretest.Wait(time.Second)
		if !first.ended() {
			t.Error("the stream before goes on")
		}
		w.answer(w.b, nth(task, 0))
		wiretest.Wait(time.Second)
		again.wantAsked("resumed", nth(task, 1))
		w.answer(w.b, nth(task, 1))
		wiretest.Wait(time.Second)
		first.wantAsked("the stream before", nth(task, 0))
		if said := again.said(); len(said) != 2 || !again.ended() {
			t.Errorf("the end: %s", said)
		}
	})
}

// The same at the other replica.
func TestReplicasResultTakenOver(t *testing.T) {
	_, a, b := newAskedPair(t, soon)
	task := a.task("colour")
	first := openSSE(t, a, http.MethodPost, fmt.Sprintf(resultBody, task), "")
	primed, _, _ := first.event()
	id := first.question(task)
	second := openSSE(t, b, http.MethodGet, "", primed)
	if again := second.question(task); again != id {
		t.Errorf("asked under another id: %s, %s", id, again)
	}
	a.answer(id, "red")
	second.wantEnd("r", "accept red")
	for _, stream := range []*sseClient{first, second} {
		if _, data, ok := stream.event(); ok {
			t.Errorf("more came: %s", data)
		}
	}
}
