package legacy_test

import (
	"context"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/legacy"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// heldSessions do not hand over the logs of calls, or do not answer whoever opens one, as they are told.
type heldSessions struct {
	legacy.Sessions
	unread atomic.Bool
	held   chan chan struct{} // closed for the next one to open a log to go on
}

func (s *heldSessions) Since(ctx context.Context, id, stream string, after int64, on func(int64, []byte)) (string, []byte, error) {
	if s.unread.Load() && after < math.MaxInt64 && stream != legacy.GetStream {
		return "", nil, shim.ErrUnavailable
	}
	return s.Sessions.Since(ctx, id, stream, after, on)
}

func (s *heldSessions) Open(ctx context.Context, id, stream string, note []byte) (int64, error) {
	select {
	case held := <-s.held:
		<-held
	default:
	}
	return s.Sessions.Open(ctx, id, stream, note)
}

// waitingWorld has a client go that waits for a task. With resume it comes back for the answer, at the other replica.
func waitingWorld(t *testing.T) (held *heldSessions, resume func() *hearing) {
	w := &modeWorld{taskWorld: newTaskWorld(t)}
	held = &heldSessions{Sessions: w.sessions, held: make(chan chan struct{}, 1)}
	w.sessions = held
	c := draftConfig(t)
	w.a, w.b = w.gateway("a", draftScript(), c), w.gateway("b", draftScript(), c)
	w.c, c.ResumeAfter = newDraftClient(t, w.a, ""), time.Second
	wait := w.c.ask(w.a, mcp.MethodTasksResult, `{"taskId":"`+string(w.made("plain"))+`"}`)
	wiretest.Wait(2 * time.Second)
	wait.leave()
	synctest.Wait()
	return held, func() *hearing { return w.c.begin(w.b, "", mcp.HeaderLastEventID, wait.lastID()) }
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
		held, resume := waitingWorld(t)
		held.unread.Store(true)
		refused := resume()
		wiretest.Wait(5 * time.Second)
		if said := refused.said(); len(said) != 1 || !strings.Contains(string(said[0]), "not available") || !refused.ended() {
			t.Errorf("it has heard %s, and ended: %t", said, refused.ended())
		}
		held.unread.Store(false)
		toldResult(t, resume())
	})
}

// A client that resumes an answer twice, since the store was slow the first time, gets it once.
func TestResumeTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held, resume := waitingWorld(t)
		slow := make(chan struct{})
		held.held <- slow
		resume()
		again := resume()
		close(slow)
		toldResult(t, again)
	})
}
