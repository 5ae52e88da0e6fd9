package legacy_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/internal/wiretest"
)

// elicit has a server ask for a colour, and says in words what it got.
func elicit(ctx context.Context, ss *sdk.ServerSession) string {
	text, err := askColour(ctx, ss)
	if err != nil {
		return err.Error()
	}
	return text
}

// beginElicit has the server ask outside of any call, in the one session that it has.
func (r *legacyReplicas) beginElicit(t *testing.T) <-chan string {
	t.Helper()
	got := make(chan string, 1)
	for ss := range r.server.Sessions() {
		go func() { got <- elicit(t.Context(), ss) }()
		return got
	}
	t.Fatal("there is no session with the server")
	return nil
}

// TestReplicasSessionQuestion: what a server asks outside of any call is asked on the GET stream of
// the session's client. It may answer at any replica, and its first answer counts.
func TestReplicasSessionQuestion(t *testing.T) {
	stack, a, b, get := newAsidePair(t)
	for i := range 2 {
		got := stack.beginElicit(t)
		id := get.question("")
		for _, from := range []*rawClient{b, a} {
			from.answer(id, fmt.Sprint(from == b, i))
		}
		wantNext(t, got, "the answer", fmt.Sprint("accept true ", i))
	}
	waitUntil(t, "nothing is left in the session", func() bool {
		st, err := tableOf(stack.gates[0]).Load(t.Context(), a.session)
		return err == nil && len(st.SessionQuestions) == 0
	})
}

// TestReplicasSessionQuestionElsewhere: the client's GET stream may be at another replica than the
// one that hears the server.
func TestReplicasSessionQuestionElsewhere(t *testing.T) {
	stack := newLegacyReplicas(t, nil)
	withAsides(stack.server)
	a, b := stack.beginBoth(t, canBeAsked)
	asking := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"colour"}}`, "")
	id := asking.question("") // so the first replica has the stream of the server
	get := openSSE(t, b, http.MethodGet, "", "")
	a.answer(id, "red")
	asking.end("c")
	// For two seconds it still has. It may take longer to get here, and a server of the
	// go-sdk asks in vain while nobody has.
	got := make(chan string, 1)
	go func() {
		for give := time.After(wiretest.Patience); ; {
			text := wiretest.Await(t, stack.beginElicit(t), "the answer")
			if strings.HasPrefix(text, "accept") {
				got <- text
				return
			}
			select {
			case <-give:
				got <- text
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	b.answer(get.question(""), "blue")
	wantNext(t, got, "the answer", "accept blue")
}

// TestReplicasSessionQuestionAgain: a question whose stream has gone is asked again on the next one,
// at the other replica, under the same id.
func TestReplicasSessionQuestionAgain(t *testing.T) {
	stack, a, b, get := newAsidePair(t)
	got := stack.beginElicit(t)
	id := get.question("")
	get.close()
	next := b.takeStream()
	if again := next.question(""); again != id {
		t.Errorf("asked under another id: %s, %s", id, again)
	}
	a.answer(id, "red")
	wantNext(t, got, "the answer", "accept red")
}

// TestReplicasSessionQuestionInVain: a client that has no GET stream is not there to be asked, and
// of one that ends its session, or answers with an error, the server hears as well.
func TestReplicasSessionQuestionInVain(t *testing.T) {
	t.Run("no stream", func(t *testing.T) {
		stack := newLegacyReplicas(t, nil)
		withAsides(stack.server)
		a := stack.begin(t, 0, canBeAsked)
		call := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"colour"}}`, "")
		a.answer(call.question(""), "red")
		call.end("c")
		if text := wiretest.Await(t, stack.beginElicit(t), "the refusal"); strings.HasPrefix(text, "accept") {
			t.Errorf("the server got %s", text)
		}
	})
	t.Run("an error", func(t *testing.T) {
		stack, _, b, get := newAsidePair(t)
		got := stack.beginElicit(t)
		b.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"error":{"code":-1,"message":"not now"}}`, get.question("")))
		if text := wiretest.Await(t, got, "the error"); !strings.Contains(text, "not now") {
			t.Errorf("the server got %s", text)
		}
	})
	t.Run("the session ends", func(t *testing.T) {
		stack, _, b, get := newAsidePair(t)
		got := stack.beginElicit(t)
		get.question("")
		b.endSession()
		if text := wiretest.Await(t, got, "the end"); !strings.Contains(text, "could not be asked") {
			t.Errorf("the server got %s", text)
		}
	})
}

// TestQuestionOutlivesTheCallThatShowsIt: a question of a plain elicitInput() of the TypeScript SDK names no call, and
// agents call tools in parallel. A client without a GET stream is asked by the newest call, and by another one when that
// ends. Its answer counts under either id, and the first goes to the server.
func TestQuestionOutlivesTheCallThatShowsIt(t *testing.T) {
	for name, first := range map[string]bool{"the answer to the call that has ended": true, "the answer to the other call": false} {
		t.Run(name, func(t *testing.T) {
			stack := newLegacyReplicas(t, func(c *config.Config) { c.ResumeAfter = 100 * time.Millisecond })
			withAsides(stack.server)
			a := stack.begin(t, 0, canBeAsked)
			asking := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":"asks","method":"tools/call","params":{"name":"colour"}}`, "")
			ids := [2]string{asking.question("")}
			a.answer(ids[0], "red") // it is there alone: the stream of the server is open from here on
			asking.wantEnd("asks", "accept red")
			older := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":"older","method":"tools/call","params":{"name":"wait"}}`, "")
			wantNext(t, stack.session.started, "the older call", "wait")
			newer := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":"newer","method":"tools/call","params":{"name":"wait"}}`, "")
			wantNext(t, stack.session.started, "the newer call", "wait")
			got := stack.beginElicit(t)
			ids[0] = newer.question("")
			a.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"newer"}}`)
			wantNext(t, stack.session.cancelled, "the end of the newer call", "wait")
			ids[1] = older.question("")
			if !first {
				ids[0], ids[1] = ids[1], ids[0]
			}
			a.answer(ids[0], "blue")
			wantNext(t, got, "the answer", "accept blue")
			a.answer(ids[1], "green")
			stack.session.proceed <- struct{}{}
			older.end("older")
		})
	}
}

// TestQuestionIsAskedOnTheClientsStream: a client with a GET stream is asked there, as directly, and no call ends that.
func TestQuestionIsAskedOnTheClientsStream(t *testing.T) {
	stack, a, b, get := newAsidePair(t)
	call := openSSE(t, a, http.MethodPost, `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"wait"}}`, "")
	wantNext(t, stack.session.started, "the call", "wait")
	got := stack.beginElicit(t)
	id := get.question("")
	stack.session.proceed <- struct{}{}
	call.end("c")
	b.answer(id, "red")
	wantNext(t, got, "the answer", "accept red")
}
