package legacy_test

import (
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// newQuietWorld is a newDraftWorld whose gateways write nothing by themselves to a client
// that does not read: who waits for a mutex does not let the clock of a bubble go on.
func newQuietWorld(t *testing.T, capabilities string) *world {
	c := draftConfig(t)
	c.KeepAlive = 24 * time.Hour
	return newWorld(t).start(draftScript(), c, capabilities)
}

// A client reads its GET stream so slowly that a task has expired before all of its
// partial results could be read. The stream ends without the end of the task, so that
// nobody takes what came for all there was. The client goes on by resuming it, at any
// replica: with what the log has, and with its other tasks; this one is unknown to it.
func TestLegacyPartialsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuietWorld(t, takePartial)
		slow := w.c.begin(w.b, "")
		created := w.c.do(w.a, mcp.MethodToolsCall, `{"name":"many","task":{"ttl":10000}}`)
		id, _ := jsonrpc.GetString(created, "task", "taskId")
		many := shim.ID(id)
		wiretest.Wait(5 * time.Second)
		slow.w.hold()
		wiretest.Wait(4 * time.Minute)
		slow.w.letGo()
		<-slow.done
		r := newPartialReader(t)
		r.take(slow.said())
		if n := len(r.text[many]); n == 0 || n >= 200 || r.over[many] {
			t.Errorf("read %d pieces of 200, over %t", n, r.over[many])
		}
		says(t, w.c.ask(w.a, mcp.MethodTasksGet, `{"taskId":"`+id+`"}`).one(), `"code":-32602`)

		next := w.c.begin(w.a, "", mcp.HeaderLastEventID, slow.lastID())
		tokens := w.c.call(w.a, "tokens")
		wiretest.Wait(time.Minute)
		r.take(next.quit())
		if r.over[many] || !r.over[tokens] || r.text[tokens] != "Once upon a " {
			t.Errorf("afterwards: over %v, read %v", r.over, r.text)
		}
	})
}

// In the same way several responses to one request end with an error, which is the last
// of them; there is nothing left to ask for.
func TestResponseModesBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newQuietWorld(t, allModes)
		h := w.c.ask(w.a, mcp.MethodToolsCall, `{"name":"letters","task":{"ttl":10000,"responseModes":["streaming"]}}`)
		wiretest.Wait(firstWait)
		s := &segments{t: t}
		s.take(h.said())
		h.w.hold()
		wiretest.Wait(time.Minute)
		h.w.letGo()
		<-h.done
		msgs := h.said()
		last := msgs[len(msgs)-1]
		says(t, last, `"error":{"code":-32603,"message":"`+shim.ErrBehind.Error()+`"}`)
		if s.over {
			t.Errorf("it is said to be complete: %s", msgs)
		}
		says(t, w.pull(w.b, s.task, "1").one(), `"code":-32602`)
	})
}
