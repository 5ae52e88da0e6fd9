package legacy_test

import (
	"strings"
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

// toldResult waits until the task has ended, and checks that its result has come.
func toldResult(t *testing.T, resumed *hearing) {
	t.Helper()
	wiretest.Wait(2 * time.Minute)
	if said := resumed.said(); len(said) != 1 || !strings.Contains(string(said[0]), `"text":"one"`) || !resumed.ended() {
		t.Errorf("it has heard %s, and ended: %t", said, resumed.ended())
	}
}

// A client that cannot resume an answer, since the store was away just when its log was read, resumes it later.
func TestResumeUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sessions, resume := waitingWorld(t)
		sessions.unread.Store(true)
		refused := resume()
		wiretest.Wait(5 * time.Second)
		if said := refused.said(); len(said) != 1 || !strings.Contains(string(said[0]), "not available") || !refused.ended() {
			t.Errorf("it has heard %s, and ended: %t", said, refused.ended())
		}
		sessions.unread.Store(false)
		toldResult(t, resume())
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
		toldResult(t, again)
	})
}
