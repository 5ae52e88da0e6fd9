package legacy_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"taskgate/gateway/config"
	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// opaqueTokens are those that a server takes. Nobody but the server knows whose they are.
type opaqueTokens struct {
	mu   sync.Mutex
	good map[string]bool
}

func (o *opaqueTokens) set(token string, good bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.good[token] = good
}

// newOpaqueHouse has a server whose tokens nobody can verify. With open it wants one for tools/call only.
func newOpaqueHouse(t *testing.T, open bool, newHouse func(*testing.T, func(*house, *config.Config)) *house, change func(*house)) (*house, *opaqueTokens) {
	t.Helper()
	tokens := &opaqueTokens{good: map[string]bool{}}
	h := newHouse(t, func(h *house, c *config.Config) {
		if change != nil {
			change(h)
		}
		h.withPassthrough(c, opaqueOf)
		c.StateKeys = []config.StateKey{parkKey}
		c.Auth.Passthrough.Introspection = nil
	})
	h.sign = func(r *http.Request, token string) {
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
	}
	h.refuses = func(r *http.Request, body []byte) bool {
		msg, _ := jsonrpc.Parse(body)
		if open && msg.Method != mcp.MethodToolsCall && msg.Method != mcp.MethodDiscover {
			return false
		}
		tokens.mu.Lock()
		defer tokens.mu.Unlock()
		return !tokens.good[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	}
	withQuestions(h.peer)
	h.listen()
	return h, tokens
}

// inSession is a client that has a token and the id of a session.
func (h *house) inSession(token, session string) *caller {
	c := h.caller(token)
	c.session = session
	return c
}

// openGET opens the GET stream of a session.
func (h *house) openGET(token, session string) *sseClient {
	h.t.Helper()
	c := newRawClient(h.t, h.url).as(token)
	c.session = session
	return c.takeStream()
}

// TestSessionOutlivesItsToken: a session that was begun with an opaque token goes on with the next one, in all
// that it has: requests, its stream, the questions of its server, its end. Whoever has its id, and no token
// that the server takes, hears nothing of it and changes nothing. So it is at another replica than the one where the
// session began, at a server without sessions, and at one of 2026.
func TestSessionOutlivesItsToken(t *testing.T) {
	single := newHouseOf
	for name, c := range map[string]struct {
		house  func(*testing.T, func(*house, *config.Config)) *house
		change func(*house)
		there  bool
	}{
		"here":               {single, nil, false},
		"another replica":    {newHouses, nil, true},
		"no sessions":        {single, func(h *house) { h.stateless = true }, false},
		"no sessions, there": {newHouses, func(h *house) { h.stateless = true }, true},
		"a server of 2026":   {single, func(h *house) { h.stateless, h.era = true, upstream.EraModern }, false},
		"one of 2026, there": {newHouses, func(h *house) { h.stateless, h.era = true, upstream.EraModern }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h, tokens := newOpaqueHouse(t, false, c.house, c.change)
			tokens.set("a1", true)
			session := newRawClient(t, h.url).as("a1").initialize(canBeAsked).session
			var server *sdk.ServerSession // the only one so far
			for server = range h.peer.Sessions() {
				continue
			}
			by := func(token string) *caller { return &caller{h: h, key: token, session: session, there: c.there} }
			by("a1").legacy(mcp.MethodToolsCall, `"name":"echo"`).want(t, http.StatusOK)
			for n := 2; n < 4; n++ {
				before, token := fmt.Sprint("a", n-1), fmt.Sprint("a", n)
				tokens.set(token, true)
				tokens.set(before, n%2 == 0) // it is refreshed, or gets more rights
				for _, intruder := range []string{"made-up", ""} {
					wantKeptOut(t, by(intruder))
				}
				if !h.stateless && !c.there {
					get := h.openGET(token, session)
					if n == 2 { // both tokens are good
						askOutside(t, server, get, by("a1"), func() {})
					}
					askOutside(t, server, get, by(token), func() { tokens.set("a1", false) })
					get.close()
				}
				tokens.set("a1", false)
				for method, params := range map[string]string{mcp.MethodToolsCall: `"name":"echo"`, "ping": ""} {
					by(token).legacy(method, params).want(t, http.StatusOK, `"result"`)
				}
				h.inSession(token, strange).legacy("ping", "").want(t, http.StatusNotFound)
			}
			tokens.set("a4", true)
			by("a4").do("DELETE", "", nil).want(t, http.StatusOK)
			by("a4").legacy("ping", "").want(t, http.StatusNotFound)
		})
	}
}

// TestNextTokenStartsAnew: nobody knows whether the next opaque token of a session is of the same user. With it nobody
// reads an answer that was kept before, or cancels a call; with the token of then the stream goes on.
func TestNextTokenStartsAnew(t *testing.T) {
	h, tokens := newOpaqueHouse(t, false, newHouseOf, nil)
	tokens.set("a1", true)
	tokens.set("m", true)
	own := newRawClient(t, h.url).as("a1").initialize(canBeAsked)
	call := openSSE(t, own, http.MethodPost, waitCall, "")
	event, _, _ := call.event()
	call.close()
	resumed := func(token string) *sseClient {
		c := newRawClient(t, h.url).as(token)
		c.session = own.session
		return openSSE(t, c, http.MethodGet, "", event)
	}
	next := &caller{h: h, key: "m", session: own.session}
	next.legacy("ping", "").want(t, http.StatusOK)
	next.do("POST", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"w1"}}`, nil).want(t, http.StatusAccepted)
	other, mine := resumed("m"), resumed("a1")
	h.events.proceed <- struct{}{}
	mine.until("the answer, with the token that began the call", func(data string) bool { return strings.Contains(data, `"content"`) })
	other.close()
	for line := range other.lines {
		if strings.Contains(line, `"content"`) {
			t.Errorf("the next token hears %q", line)
		}
	}
}

// wantKeptOut fails if somebody gets anything of a session.
func wantKeptOut(t *testing.T, c *caller) {
	t.Helper()
	for _, try := range []struct{ method, body string }{
		{"GET", ""}, {"DELETE", ""}, {"POST", `{"jsonrpc":"2.0","id":"i","method":"ping"}`},
		{"POST", `{"jsonrpc":"2.0","id":"i","method":"tools/call","params":{"name":"echo"}}`},
		{"POST", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`},
	} {
		r := c.do(try.method, try.body, nil)
		if r.status != http.StatusUnauthorized && r.status != http.StatusNotFound || strings.Contains(r.body, `"result"`) {
			t.Errorf("%s %s with %q: %v", try.method, try.body, c.key, r)
		}
	}
}

// askOutside has the server ask outside of any call, hears the question on a stream and answers it as somebody, after
// before.
func askOutside(t *testing.T, ss *sdk.ServerSession, get *sseClient, as *caller, before func()) {
	t.Helper()
	got := make(chan string, 1)
	go func() { got <- elicit(t.Context(), ss) }()
	id := get.question("")
	before()
	as.do("POST", answerBody(id, "blue"), nil).want(t, http.StatusAccepted)
	wantNext(t, got, "the answer", "accept blue")
}

// TestSessionOfTheServersCaller: a server may know whose a session is. With a good token of somebody else the
// session is unknown, as it is there, and it goes on for its own caller.
func TestSessionOfTheServersCaller(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusBadRequest} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			h, tokens := newOpaqueHouse(t, false, newHouseOf, nil)
			for _, token := range []string{"a1", "a2", "m"} {
				tokens.set(token, true)
			}
			own := h.caller("a1").initialize()
			refuses := h.refuses
			h.refuses = func(r *http.Request, body []byte) bool {
				if r.Header.Get(mcp.HeaderSession) != "" && r.Header.Get("Authorization") == "Bearer m" {
					h.refusal = status
					return true
				}
				h.refusal = 0
				return refuses(r, body)
			}
			for _, method := range []string{"GET", "DELETE"} {
				if r := h.inSession("m", own.session).do(method, "", nil); r.status != http.StatusNotFound && r.status != status {
					t.Errorf("%s: %v", method, r)
				}
			}
			if r := h.inSession("m", own.session).legacy(mcp.MethodToolsCall, `"name":"echo"`); r.status != http.StatusNotFound && r.status != status {
				t.Errorf("a call: %v", r)
			}
			handshakes := func() (n int) {
				for _, r := range h.sent() {
					if strings.Contains(r.body, `"initialize"`) && r.header.Get("Authorization") != "Bearer a1" {
						n++
					}
				}
				return n
			}
			for _, token := range []string{"a1", "a2"} {
				h.inSession(token, own.session).legacy("ping", "").want(t, http.StatusOK)
			}
			if n := handshakes(); n > 0 {
				t.Errorf("%d sessions were opened for others", n)
			}
		})
	}
}

// wantUnknownSession fails unless a session is answered as one that does not exist.
func wantUnknownSession(t *testing.T, what string, r reply) {
	t.Helper()
	if r.status != http.StatusNotFound || r.body != `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"}}` {
		t.Errorf("%s: %v", what, r)
	}
}

// TestOpenHandshakeOfOpaqueTokens: where the handshake is open to everybody, a token is one that the server takes once
// it has taken it for a call. A made-up one gets no further than the server lets it.
func TestOpenHandshakeOfOpaqueTokens(t *testing.T) {
	h, tokens := newOpaqueHouse(t, true, newHouseOf, nil)
	tokens.set("a1", true)
	session := h.caller("").initialize().session
	if r := h.inSession("", session).legacy(mcp.MethodToolsCall, `"name":"echo"`); r.status != http.StatusUnauthorized || r.header.Get("WWW-Authenticate") == "" {
		t.Errorf("without a token: %v", r)
	}
	h.inSession("made-up", session).legacy(mcp.MethodToolsCall, `"name":"echo"`).want(t, http.StatusUnauthorized)
	for n, token := range []string{"a1", "a2", "a3"} {
		tokens.set(token, true)
		for _, name := range []string{"echo", "wait"} { // a quick one, and one that becomes a task
			if n == 1 && name == "echo" {
				continue
			}
			r := h.inSession(token, session).legacy(mcp.MethodToolsCall, `"name":"`+name+`","task":{}`)
			if name == "echo" {
				r = h.inSession(token, session).legacy(mcp.MethodToolsCall, `"name":"echo"`)
			} else {
				wiretest.Await(t, h.events.started, "the tool")
				h.events.proceed <- struct{}{}
				id, _ := jsonrpc.GetString([]byte(r.body), "result", "task", "taskId")
				r = h.inSession(token, session).legacy(mcp.MethodTasksResult, `"taskId":"`+id+`"`)
			}
			r.want(t, http.StatusOK, `"content"`)
		}
		for _, intruder := range []string{"made-up", ""} {
			for _, method := range []string{"GET", "DELETE"} {
				wantUnknownSession(t, method, h.inSession(intruder, session).do(method, "", nil))
			}
			wantUnknownSession(t, "a cancellation", h.inSession(intruder, session).do("POST", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, nil))
			wantUnknownSession(t, "an answer", h.inSession(intruder, session).do("POST", answerBody(strange+"/q", "red"), nil))
			if r := h.inSession(intruder, session).legacy(mcp.MethodToolsCall, `"name":"echo"`); strings.Contains(r.body, `"content"`) {
				t.Errorf("a call with %q: %v", intruder, r)
			}
		}
		h.openGET(token, session).close()
		tokens.set(token, false)
	}
}

// TestTheServerHearsTheNextToken: that a call is cancelled, and the answer to what a server asks outside of any call,
// the server hears with the token that the client has by then, at whichever replica it arrives.
func TestTheServerHearsTheNextToken(t *testing.T) {
	for name, there := range map[string]bool{"here": false, "there": true} {
		t.Run(name, func(t *testing.T) {
			h, tokens := newOpaqueHouse(t, false, newHouses, nil)
			tokens.set("a1", true)
			first := newRawClient(t, h.url).as("a1").initialize(canBeAsked)
			var server *sdk.ServerSession // the only one
			for server = range h.peer.Sessions() {
				continue
			}
			get := h.openGET("a1", first.session)
			tokens.set("a2", true)
			next := &caller{h: h, key: "a2", session: first.session, there: there}
			wantHeard := func(what string) {
				t.Helper()
				var by []string
				for _, r := range h.sent() {
					if strings.Contains(r.body, what) {
						by = append(by, r.header.Get("Authorization"))
					}
				}
				if !slices.Equal(by, []string{"Bearer a2"}) {
					t.Errorf("the server has heard %s with %q", what, by)
				}
			}
			askOutside(t, server, get, next, func() { h.sent() })
			wantHeard(`"blue"`)
			first.as("a2") // whoever begins a call cancels it
			leave := first.beginPost(`{"jsonrpc":"2.0","id":"w","method":"tools/call","params":{"name":"wait"}}`)
			defer leave()
			wiretest.Await(t, h.events.started, "the call")
			if r := next.do("POST", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"w"}}`, nil); r.status != http.StatusAccepted {
				t.Fatalf("the cancellation: %v", r)
			}
			wiretest.Await(t, h.events.cancelled, "the cancellation")
			wantHeard(mcp.NotifyCancelled)
		})
	}
}

// TestHandshakeComesFirst: the gateway asks nothing by itself before the handshake of a client. So nothing that the
// server refuses without a session speaks against the client's token: it is in no record, and the caller has its tasks.
func TestHandshakeComesFirst(t *testing.T) {
	h, tokens := newOpaqueHouse(t, false, newHouseOf, nil)
	tokens.set("a1", true)
	refuses, discovered := h.refuses, atomic.Int64{}
	h.refuses = func(r *http.Request, body []byte) bool {
		if msg, _ := jsonrpc.Parse(body); msg.Method == mcp.MethodDiscover {
			discovered.Add(1)
			return true
		}
		return refuses(r, body)
	}
	session := h.caller("a1").initialize().session
	if discovered.Load() != 0 {
		t.Error("the gateway has asked")
	}
	if text := h.records.String(); strings.Contains(text, "refused") {
		t.Errorf("the records: %s", text)
	}
	h.inSession("a1", session).legacy(mcp.MethodTasksList, "").want(t, http.StatusOK, `"tasks":[]`)
}
