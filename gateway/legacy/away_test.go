package legacy_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// withLateQuestions adds a tool that asks n questions at once when it is told to go on, some times one after the
// other, and returns what it has heard from each.
func withLateQuestions(stack *legacyReplicas, n, times int) (heard chan string) {
	heard = make(chan string, n*times)
	addTool(stack.server, "late", func(ctx context.Context, r *sdk.CallToolRequest) (string, error) {
		stack.session.started <- "late"
		<-stack.session.proceed
		text := ""
		for range times {
			all := make(chan string, n)
			for range n {
				go func() { all <- elicit(ctx, r.Session) }() // ends with its answer
			}
			for range n {
				one := <-all
				heard <- one
				text += one
			}
		}
		return text, nil
	})
	return heard
}

const lateCall = `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"late"}}`

// watched has the client of a replica talk to it by a front that says when a connection
// breaks under a request.
func (s *legacyReplicas) watched(t *testing.T, c *rawClient, replica int) (broken chan struct{}) {
	t.Helper()
	broken = make(chan struct{}, 16)
	h := s.gates[replica].Handler()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stop := context.AfterFunc(r.Context(), func() { broken <- struct{}{} })
		defer stop()
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	c.url = front.URL + "/up/mcp"
	return broken
}

// TestReplicasAskedWhileAway: a client whose connection is broken just when a server
// asks finds the question when it resumes the stream (X5).
func TestReplicasAskedWhileAway(t *testing.T) {
	stack := newLegacyReplicas(t, soon)
	withLateQuestions(stack, 1, 1)
	a, b := stack.beginBoth(t, canBeAsked)
	broken := stack.watched(t, a, 0)
	call := openSSE(t, a, http.MethodPost, lateCall, "")
	primed, _, _ := call.event()
	wiretest.Await(t, stack.session.started, "the tool")
	call.close()
	wiretest.Await(t, broken, "the connection's end")
	stack.session.proceed <- struct{}{}
	resumed := openSSE(t, b, http.MethodGet, "", primed)
	id := resumed.question("")
	b.answer(id, "red")
	resumed.wantEnd("c", "accept red")
}

// TestReplicasAskedNobody: of a client that has gone for good, the server hears at once,
// for each of its questions.
func TestReplicasAskedNobody(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	heard := withLateQuestions(stack, 3, 2)
	a := stack.begin(t, 0, canBeAsked)
	broken := stack.watched(t, a, 0)
	leave := a.sends(lateCall)
	wiretest.Await(t, stack.session.started, "the tool")
	leave()
	wiretest.Await(t, broken, "the connection's end")
	stack.session.proceed <- struct{}{}
	for range 6 {
		if got := wiretest.Await(t, heard, "an answer"); got != "cancel <nil>" {
			t.Errorf("the server heard %s", got)
		}
	}
}

// A GET stream that begins and ends while the store is away has the next one go on where it is: nothing comes twice.
func TestStandingAmidAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newDraftWorld(t, "")
		says := func(data string) {
			w.a.up.say(shim.Notification{Method: mcp.NotifyMessage, Params: []byte(`{"level":"info","data":"` + data + `"}`)})
			wiretest.Wait(5 * time.Second)
		}
		first := w.c.begin(w.a, "")
		says("before")
		w.sessions.gone.Store(true)
		heard := first.quit()
		amid := w.c.begin(w.a, "")
		wiretest.Wait(5 * time.Second)
		heard = append(heard, amid.quit()...)
		w.sessions.gone.Store(false)
		wiretest.Wait(5 * time.Second)
		last := w.c.begin(w.a, "")
		says("after")
		data := loggedIn(append(heard, last.quit()...))
		if got := strings.Join(data, ", "); got != "before, after" {
			t.Errorf("heard %s", got)
		}
	})
}
