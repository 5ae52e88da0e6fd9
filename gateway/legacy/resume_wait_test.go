package legacy_test

import (
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// waitingWorld has a client go that waits for a task. With resume it comes back for the answer, at the other replica.
func waitingWorld(t *testing.T) (sessions *faultySessions, resume func() *hearing) {
	w := newDraftWorld(t, "")
	w.config.ResumeAfter = time.Second
	wait := w.c.ask(w.a, mcp.MethodTasksResult, `{"taskId":"`+string(w.c.call(w.a, "plain"))+`"}`)
	wiretest.Wait(2 * time.Second)
	wait.leave()
	synctest.Wait()
	return w.sessions, func() *hearing { return w.resume(w.b, wait) }
}

// A client that cannot resume an answer, since the store was away just when its log was read, resumes it later.
func TestResumeUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sessions, resume := waitingWorld(t)
		sessions.unread.Store(true)
		refused := resume()
		wiretest.Wait(5 * time.Second)
		refused.wantOnly("not available")
		sessions.unread.Store(false)
		again := resume()
		wiretest.Wait(2 * time.Minute)
		again.wantOnly(`"text":"one"`)
	})
}

// A client that resumes an answer twice, since the store was slow the first time, gets it once.
func TestResumeTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sessions, resume := waitingWorld(t)
		slow := make(chan struct{})
		sessions.held <- slow
		resume()
		again := resume()
		close(slow)
		wiretest.Wait(2 * time.Minute)
		again.wantOnly(`"text":"one"`)
	})
}
