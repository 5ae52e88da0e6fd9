package upstream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim/shimtest/fake"
)

// beat has the server send a ping each second on a GET stream, and end the session when an answer is missing for three
// seconds, as Playwright's does with other times.
func beat(s *fake.Server) {
	got := make(chan struct{}, 1)
	s.OnAnswer(func(*fake.Exchange) bool { got <- struct{}{}; return true })
	s.On("GET", func(x *fake.Exchange) {
		x.Head("text/event-stream")
		defer s.LoseSessions()
		for n := 0; x.R.Context().Err() == nil; n++ {
			x.Event(fmt.Sprintf(`{"jsonrpc":"2.0","id":"b%d","method":"ping"}`, n))
			select {
			case <-got:
			case <-time.After(3 * time.Second):
				return
			}
			select {
			case <-time.After(time.Second):
			case <-x.R.Context().Done():
			}
		}
	})
}

// The session of a server that lives by the GET stream lives as long as it is used. The stream was closed two seconds
// after each call, and the page of a browser was lost while the agent was thinking.
func TestStreamOfAHeartbeatIsKept(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		beat(s)
		s.Tool("t", fake.Text("ok"))
		for range 5 {
			mustCall(t, h, asksIn("a", all))
			pauseFor(t, 9*time.Minute)
		}
		mustCall(t, h, in("a", all)) // which cannot be asked
		pauseFor(t, 9*time.Minute)
		mustCall(t, h, in("a", all))
		wantSessions(t, s, 1, 0, 1)
		asked(t, s, "GET", 1)
		pauseFor(t, keepUnused+time.Minute)
		mustCall(t, h, in("a", all)) // nobody has used it for ten minutes, so the server has ended it
		wantSessions(t, s, 2, 0, 1)
	})
}

// A server that says nothing on the stream pays for it only while it may ask. If it loses a session whose stream was
// closed, the stream of the next session stays.
func TestStreamThatIsNeeded(t *testing.T) {
	bubble(t, fake.Stateful, Config{}, func(t *testing.T, s *fake.Server, h *ServerClient) {
		s.Tool("t", fake.Text("ok"))
		mustCall(t, h, asksIn("a", all))
		pauseFor(t, 2*linger)
		if s.Listeners() != 0 {
			t.Error("the stream is open")
		}
		s.LoseSessions()
		for range 2 {
			mustCall(t, h, in("a", all))
			pauseFor(t, 2*linger)
			if s.Listeners() != 1 {
				t.Error("the stream is closed")
			}
		}
		s.LoseSessions() // though the stream was open
		mustCall(t, h, in("a", all))
		pauseFor(t, time.Hour)
		mustCall(t, h, in("a", all))
		if pauseFor(t, 2*linger); s.Listeners() != 0 {
			t.Error("the stream is open")
		}
	})
}

// A stream that is kept at one replica goes to another one that needs it, and stays while a client uses another one.
func TestKeptStreamBetweenReplicas(t *testing.T) {
	bubble(t, fake.Stateful, Config{Replica: "a"}, func(t *testing.T, s *fake.Server, a *ServerClient) {
		b := shareSessions(t, a)
		busy := allowOneStream(s, func() {}, func(x *fake.Exchange) {
			x.Event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`)
			x.Hang()
		})
		s.Tool("t", fake.Text("ok"))
		silent := together()
		silent.Rounds = false
		mustCall(t, a, together())
		for range 4 { // at the other one, which cannot be asked
			pauseFor(t, 5*time.Minute)
			mustCall(t, b, silent)
		}
		if !busy.Load() || len(s.Seen("GET")) != 1 {
			t.Errorf("%d streams, open %t", len(s.Seen("GET")), busy.Load())
		}
		mustCall(t, b, together())
		pauseFor(t, linger+time.Second)
		if n := len(s.Seen("GET")); n < 3 || !busy.Load() { // it was refused at first
			t.Errorf("%d streams were asked for, open %t", n, busy.Load())
		}
		pauseFor(t, keepUnused+time.Minute)
		if synctest.Wait(); busy.Load() {
			t.Error("the stream is open")
		}
	})
}
