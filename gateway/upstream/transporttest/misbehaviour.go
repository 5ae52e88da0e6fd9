package transporttest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"taskgate/internal/jsonrpc"
)

// waiting is a request that stays in flight, and must not hear of what happens to others.
func waiting(c *client) *inbound {
	c.t.Helper()
	in := c.ask(c.t.Context(), "test/wait", "")
	in.next()
	return in
}

// untouched wants a request that waits to be cancelled as if nothing had happened before.
func untouched(c *client, in *inbound) {
	c.t.Helper()
	c.tell("notifications/cancelled", `{"requestId":"`+in.id+`"}`)
	if m := in.answer(); m.Error == nil || m.Error.Message != "cancelled" || len(in.heard) > 0 {
		c.t.Errorf("the other request hears %+v and then %+v", in.heard, m)
	}
}

// An answer that is no JSON fails its request at once, and no other.
func testNoJSON(t *testing.T, c *client) {
	other := waiting(c)
	if m, err := Read(c.ask(t.Context(), "test/nan", "").stream); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the answer is %+v, %v", m, err)
	}
	c.must("test/echo", "")
	untouched(c, other)
}

// An error without an id ends the only request, and none if it may be for a notification.
func testNameless(t *testing.T, c *client) {
	c.must("test/echo", "") // no notification is left that it could be for
	if m, err := Read(c.ask(t.Context(), "test/nameless", "").stream); err != nil || m.Error == nil {
		t.Errorf("the answer is %+v, %v", m, err)
	}
	in := waiting(c)
	c.tell("test/wrong", `{}`)
	c.must("test/echo", "")
	untouched(c, in)
}

// What the server asks as soon as its client is ready waits for the stream on which that can be asked.
func testEarlyQuestion(t *testing.T, c *client) {
	c = beginWith(t, c.peer, `{"capabilities":{"roots":{}}}`)
	c.must("test/echo", "") // the question is there
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	aside := c.listen(ctx)
	m := aside.next()
	if m.Kind != jsonrpc.Request || m.Method != "roots/list" {
		t.Fatalf("heard %+v", m)
	}
	c.do(t.Context(), string(jsonrpc.AppendResult(nil, m.ID, []byte(`{"text":"here"}`))))
	if got := c.must("test/roots", ""); got.Text != "here" {
		t.Errorf("the roots are %+v", got)
	}
}

// A server that reads nothing while it works loses nothing, however large.
func testDeaf(t *testing.T, c *client) {
	busy := c.ask(t.Context(), "test/deaf", `"n":300`)
	text := strings.Repeat("x", 1<<20)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if got := c.must("test/echo", `"text":"`+text+`"`); got.Text != text {
				t.Errorf("%d bytes came back", len(got.Text))
			}
		})
	}
	all.Wait()
	result(t, busy.answer())
}

// What is said in a session is heard in no other one: neither progress nor what belongs to no request.
func testForeign(t *testing.T, c *client) {
	other := begin(t, c.peer)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	aside := other.listen(ctx)
	in := waiting(other)
	c.must("test/steps", `"n":3`)
	c.must("test/announce", "")
	other.must("test/count", "")
	untouched(other, in)
	other.must("test/announce", `"text":"own"`)
	if m := aside.next(); m.Method != "notifications/test" || !strings.Contains(string(m.Params), "own") {
		t.Errorf("heard %+v", m)
	}
}
