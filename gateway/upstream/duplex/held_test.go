package duplex

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
)

// able is an initialize of a client that can be asked.
const able = `{"jsonrpc":"2.0","id":"h","method":"initialize","params":{"capabilities":{"roots":{}}}}`

// asking is a session with a server that asks what the test has it ask. refused are the ids of
// the questions that were refused.
type asking struct {
	t       *testing.T
	tr      *Transport
	session string
	pipe    *pipe
	refused chan string
}

func newAsking(t *testing.T) *asking {
	a := &asking{t: t, refused: make(chan string, 2*maxHeld)}
	a.tr = opens(t, Config{}, func(p *pipe, m jsonrpc.Message) {
		if m.Method == "initialize" {
			a.pipe = p
		}
		switch m.Kind {
		case jsonrpc.Request:
			p.answer(m)
		case jsonrpc.ErrorResponse:
			a.refused <- m.ID.Key()
		}
	})
	resp, err := post(t, a.tr, "", able)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(resp.Body)
	resp.Body.Close()
	a.session = resp.Header.Get("Mcp-Session-Id")
	synctest.Wait()
	return a
}

func (a *asking) ask(id, more string) {
	a.pipe.say(`{"jsonrpc":"2.0","id":%q,"method":"roots/list","params":{"x":%q}}`, id, more)
	synctest.Wait()
}

func (a *asking) get() *http.Response {
	a.t.Helper()
	req, _ := http.NewRequestWithContext(a.t.Context(), http.MethodGet, "http://x.invalid", nil)
	req.Header.Set("Mcp-Session-Id", a.session)
	resp, err := a.tr.RoundTrip(req)
	if err != nil {
		a.t.Fatal(err)
	}
	synctest.Wait()
	return resp
}

// wants wants exactly so many questions to have been refused.
func (a *asking) wants(n int) {
	a.t.Helper()
	synctest.Wait()
	if got := len(a.refused); got != n {
		a.t.Errorf("%d questions were refused, want %d", got, n)
	}
}

// Each question is held for its own ten seconds, whichever were held before it.
func TestEachQuestionIsHeldForItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		a.ask("q1", "")
		<-time.After(5 * time.Second)
		resp := a.get()
		<-time.After(time.Second)
		resp.Body.Close()
		<-time.After(time.Second)
		a.ask("q2", "")
		<-time.After(2 * time.Second)
		a.ask("q3", "")
		<-time.After(holdFor - 2*time.Second - 1)
		a.wants(0)
		<-time.After(1)
		a.wants(1)
		<-time.After(2 * time.Second)
		a.wants(2)
	})
}

// However many are held, each is refused.
func TestAllHeldQuestionsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		for i := range maxHeld {
			a.ask(fmt.Sprint("q", i), "")
		}
		a.wants(0)
		<-time.After(holdFor)
		a.wants(maxHeld)
	})
}

// A question that meets a stream which nobody reads any more is refused, as is one that was held and
// does not fit: the server waits for an answer.
func TestQuestionThatReachesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAsking(t)
		resp := a.get()
		st := resp.Body.(*stream)
		st.mu.Lock()
		st.closed = true // Close has begun
		st.mu.Unlock()
		a.ask("closed", "")
		a.wants(1)
		a.tr.findServer(a.session).noteLeft(st)
		resp = a.get()
		resp.Body.(*stream).endStream(errTest) // another GET takes its place
		a.ask("ended", "")
		a.wants(2)
		resp.Body.Close()
		large := strings.Repeat("x", maxQueue)
		for i := range 3 {
			a.ask(fmt.Sprint("large", i), large)
		}
		a.wants(2)
		defer a.get().Body.Close()
		a.wants(4)
	})
}
