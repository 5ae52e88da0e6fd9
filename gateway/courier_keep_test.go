package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/config"
	"taskgate/internal/mcp"
	"taskgate/shim"
)

func handling(c *config.Config) { c.Upstreams[0].WithoutTasks = config.WithoutTasksHandle }

// handle makes a call that becomes a task, of which its client is told in words.
func (w *askWorld) handle(tool string) (call *hearing, task shim.ID) {
	w.t.Helper()
	call = w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"`+tool+`"}`)
	wait(46 * time.Second)
	said := call.said()
	_, id, ok := strings.Cut(string(said[len(said)-1]), `{\"taskId\":\"`)
	if !ok || !call.ended() {
		w.t.Fatalf("no handle: %s", said)
	}
	return call, shim.ID(id[:36])
}

// read begins to wait for a task by the gateway's own tool.
func (w *askWorld) read(c *taskClient, g *legacyServer, task shim.ID) *hearing {
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
			wait(46 * time.Second)
			r.wantAsked("on that of the tool that reads it")
			if said := string(r.said()[0]); !strings.Contains(said, "input_required") {
				t.Errorf("after waiting: %s", said)
			}
		}
		last := w.read(w.c, w.b, task)
		w.answer(w.a, nth(task, 0))
		wait(time.Second)
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
		wait(46 * time.Second)
		first.wantAsked("the first time", nth(task, 0))
		again := w.read(w.c, w.b, task)
		wait(46 * time.Second)
		again.wantAsked("the second time")
		if !again.ended() {
			t.Error("no answer")
		}
		anew := newDraftClient(t, w.b, `"elicitation":{}`)
		other := w.read(anew, w.b, task)
		wait(time.Second)
		other.wantAsked("in another session", nth(task, 0))
		w.answer(w.a, nth(task, 0))
		wait(time.Second)
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
		wait(20 * time.Second)
		first.quit()
		first.wantAsked("the first time", nth(task, 0))
		again := w.read(w.c, w.b, task)
		wait(time.Second)
		again.wantAsked("the second time", nth(task, 0))
		w.closing(again)
	})
}
