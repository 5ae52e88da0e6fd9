package duplex

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/gateway/upstream/transporttest"
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
	a.session = beginWith(t, a.tr, able)
	synctest.Wait()
	return a
}

func (a *asking) ask(id, more string) {
	a.pipe.say(`{"jsonrpc":"2.0","id":%q,"method":"roots/list","params":{"x":%q}}`, id, more)
	synctest.Wait()
}

func (a *asking) listen() *stream {
	a.t.Helper()
	st := listen(a.t, a.tr, a.session)
	synctest.Wait()
	return st
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
		st := a.listen()
		if m, err := transporttest.Read(st); err != nil || m.Method != "roots/list" {
			t.Errorf("%+v, %v", m, err)
		}
		<-time.After(time.Second)
		st.Close()
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
		st := a.listen()
		st.mu.Lock()
		st.err = io.ErrClosedPipe // Close has begun
		st.mu.Unlock()
		a.ask("closed", "")
		a.wants(1)
		a.tr.findServer(a.session).noteLeft(st)
		st = a.listen()
		st.endStream(errTest) // another one takes its place
		a.ask("ended", "")
		a.wants(2)
		a.tr.findServer(a.session).noteLeft(st)
		large := strings.Repeat("x", maxQueue)
		for i := range 3 {
			a.ask(fmt.Sprint("large", i), large)
		}
		a.wants(2)
		defer a.listen().Close()
		a.wants(4)
	})
}

// What a server says before its client listens for the first time is kept for that, and dropped afterwards.
func TestSaidBeforeTheFirstListener(t *testing.T) {
	var server *pipe
	tr := opens(t, Config{}, func(p *pipe, m jsonrpc.Message) { server = p; p.answer(m) })
	session := begin(t, tr)
	server.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	server.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"gone","progress":1}}`)
	echo(t, tr, session) // what was said before has been read
	first := listen(t, tr, session)
	if e := first.Next(); e.Message.Method != "notifications/tools/list_changed" {
		t.Errorf("heard %+v", e)
	}
	first.Close()
	server.say(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)
	echo(t, tr, session)
	second := listen(t, tr, session)
	server.say(`{"jsonrpc":"2.0","method":"notifications/message"}`)
	if e := second.Next(); e.Message.Method != "notifications/message" {
		t.Errorf("heard %+v", e)
	}
	second.Close()
}
