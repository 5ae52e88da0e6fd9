package transporttest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

// Peer is a server of the suite, and the transport that reaches it.
type Peer struct {
	Transport transport.Transport
	// Dead waits until the server is dead that a client has made die; nil where a connection to
	// the next one never goes to that.
	Dead func()
}

// Dial makes a fresh peer that ends with the test. A server that has died serves again soon.
type Dial func(t *testing.T) *Peer

// Suite checks that a transport keeps the contract.
func Suite(t *testing.T, dial Dial) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, *client)
	}{
		{"Answer", testAnswer}, {"Error", testError}, {"Progress", testProgress}, {"Waiting", testWaiting}, {"Question", testQuestion},
		{"Aside", testAside}, {"Sessions", testSessions}, {"End", testEnd}, {"Parallel", testParallel},
		{"Large", testLarge}, {"Cancel", testCancel}, {"Left", testLeft}, {"EndedBefore", testEndedBefore},
		{"EndedWhile", testEndedWhile}, {"SlowReader", testSlowReader}, {"Garbage", testGarbage}, {"Gone", testGone},
		{"NoJSON", testNoJSON}, {"Nameless", testNameless}, {"EarlyQuestion", testEarlyQuestion}, {"Deaf", testDeaf}, {"Foreign", testForeign},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, begin(t, dial(t))) })
	}
}

func testAnswer(t *testing.T, c *client) {
	if r := c.must("test/echo", `"text":"hällo\n"`); r.Text != "hällo\n" {
		t.Errorf("the answer is %+v", r)
	}
}

func testError(t *testing.T, c *client) {
	in := c.ask(t.Context(), "test/unknown", "")
	if m := in.answer(); m.Error == nil || m.Error.Code != -32601 {
		t.Errorf("the answer is %+v", m)
	}
}

// What belongs to a request comes on its stream, in order, and before the answer.
func testProgress(t *testing.T, c *client) {
	const n = 100
	in := c.ask(t.Context(), "test/steps", fmt.Sprintf(`"n":%d`, n))
	in.answer()
	if len(in.heard) != n {
		t.Fatalf("%d notifications, want %d", len(in.heard), n)
	}
	for i, got := range in.heard {
		if want := fmt.Sprintf(`"progress":%d,`, i+1); got.Method != mcp.NotifyProgress || !strings.Contains(string(got.Params), want) {
			t.Errorf("notification %d is %s %s", i, got.Method, got.Params)
		}
	}
}

// waits is a Sender that counts how often the server is waited for.
type waits struct {
	transport.Nobody
	n atomic.Int64
}

func (w *waits) NoteWaiting() { w.n.Add(1) }

// Whoever sends a request hears of it before its server is waited for.
func testWaiting(t *testing.T, c *client) {
	ctx, cancel := context.WithCancel(c.bounded(t.Context()))
	m := Message(c.session, `{"jsonrpc":"2.0","id":"w","method":"test/wait","params":{"_meta":{"progressToken":"w"}}}`)
	w := new(waits)
	m.Sender = w
	in, err := c.peer.Transport.Request(ctx, m)
	Must(t, err)
	defer in.Finish()
	if _, err := Read(in); err != nil {
		t.Fatal(err)
	}
	had, ended := w.n.Load(), make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = Read(in)
	}()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); w.n.Load() == had; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("its sender does not hear that the server is waited for")
		}
	}
	cancel()
	<-ended
}

// A question of the server is answered by a POST of its own.
func testQuestion(t *testing.T, c *client) {
	in := c.ask(t.Context(), "test/ask", "")
	in.reply = `{"text":"Ada"}`
	if got := result(t, in.answer()); got.Text != "Ada" {
		t.Errorf("the answer is %+v", got)
	}
}

// What belongs to no request comes on the stream of a GET.
func testAside(t *testing.T, c *client) {
	ctx, cancel := context.WithCancel(t.Context())
	in := c.listen(ctx)
	c.must("test/announce", "")
	if m := in.next(); m.Method != "notifications/test" {
		t.Errorf("heard %+v", m)
	}
	cancel()
	if m, err := Read(in.stream); err == nil {
		t.Errorf("after its end: %+v", m)
	}
}

// Sessions are apart.
func testSessions(t *testing.T, c *client) {
	other := begin(t, c.peer)
	if c.session == "" || other.session == c.session {
		t.Fatalf("sessions %q and %q", c.session, other.session)
	}
	for i := range 3 {
		if got := c.must("test/count", ""); got.N != i+1 {
			t.Errorf("count %d, want %d", got.N, i+1)
		}
	}
	if got := other.must("test/count", ""); got.N != 1 {
		t.Errorf("the other session counts %d", got.N)
	}
}

// A session that has ended is not known any more, and others live on.
func testEnd(t *testing.T, c *client) {
	other := begin(t, c.peer)
	if err := c.peer.Transport.EndSession(t.Context(), Message(c.session, "")); err != nil {
		t.Errorf("ending the session: %v", err)
	}
	if _, err := c.try(t.Context(), `{"jsonrpc":"2.0","id":"x","method":"test/echo"}`); !isUnknown(err) {
		t.Errorf("a request in the session: %v", err)
	}
	if _, err := c.peer.Transport.Listen(t.Context(), Message(c.session, "")); !isUnknown(err) {
		t.Errorf("listening in the session: %v", err)
	}
	other.must("test/echo", "")
}

// isUnknown reports whether a message was refused since nobody knows its session.
func isUnknown(err error) bool {
	se, ok := err.(*transport.StatusError)
	return ok && se.IsSessionLost()
}

// Of many requests at a time, each gets what is its own.
func testParallel(t *testing.T, c *client) {
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			text := fmt.Sprint(i, strings.Repeat("x", 200*i))
			if got := c.must("test/echo", fmt.Sprintf(`"text":%q`, text)); got.Text != text {
				t.Errorf("request %d got %d bytes", i, len(got.Text))
			}
		})
		all.Go(func() {
			in := c.ask(t.Context(), "test/steps", fmt.Sprintf(`"n":%d`, i%7))
			in.answer()
			if len(in.heard) != i%7 {
				t.Errorf("request %d heard %d notifications, want %d", i, len(in.heard), i%7)
			}
			for _, m := range in.heard {
				if !strings.Contains(string(m.Params), in.id) {
					t.Errorf("request %s heard %s", in.id, m.Params)
				}
			}
		})
	}
	all.Wait()
}

// Messages may be large in both directions, and have any character.
func testLarge(t *testing.T, c *client) {
	text := strings.Repeat("x", 4<<20) + "ä\u2028"
	if got := c.must("test/echo", fmt.Sprintf(`"text":%q`, text)); got.Text != text {
		t.Errorf("%d bytes came back, want %d", len(got.Text), len(text))
	}
}

// A cancellation reaches the server, and its answer the client.
func testCancel(t *testing.T, c *client) {
	in := c.ask(t.Context(), "test/wait", "")
	in.next()
	c.tell(mcp.NotifyCancelled, `{"requestId":"`+in.id+`"}`)
	if m := in.answer(); m.Error == nil || m.Error.Message != "cancelled" {
		t.Errorf("the answer is %+v", m)
	}
}

// To leave a response does not disturb others.
func testLeft(t *testing.T, c *client) {
	ctx, cancel := context.WithCancel(t.Context())
	in := c.ask(ctx, "test/wait", "")
	in.next()
	in.stream.Close()
	cancel()
	c.must("test/echo", "")
	c.tell(mcp.NotifyCancelled, `{"requestId":"`+in.id+`"}`)
	c.must("test/echo", "")
}

func testEndedBefore(t *testing.T, c *client) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if in, err := c.try(ctx, `{"jsonrpc":"2.0","id":"x","method":"test/count","params":{}}`); err == nil {
		defer in.Close()
		if m, err := Read(in); err == nil {
			t.Errorf("the answer is %+v", m)
		}
	}
	c.must("test/echo", "")
}

// The end of a request's context ends the reading of its response.
func testEndedWhile(t *testing.T, c *client) {
	ctx, cancel := context.WithCancel(t.Context())
	in := c.ask(ctx, "test/wait", "")
	in.next()
	cancel()
	if m, err := Read(in.stream); !errors.Is(err, context.Canceled) {
		t.Errorf("read %+v, %v", m, err)
	}
	c.must("test/echo", "")
}

// A response that is not read holds up nobody. Progress in it may be merged, and rises.
func testSlowReader(t *testing.T, c *client) {
	in := c.ask(t.Context(), "test/chatter", `"n":200`) // 1.6 MiB
	in.next()
	for range 20 {
		c.must("test/echo", "")
	}
	last := 1
	for {
		m, err := Read(in.stream)
		if err != nil {
			t.Fatalf("after %d: %v", last, err)
		}
		if m.Method == "" {
			break
		}
		p, _ := jsonrpc.Get(m.Params, "progress")
		n, _ := strconv.Atoi(string(p))
		if n <= last {
			t.Errorf("%d after %d", n, last)
		}
		last = n
	}
	if last != 200 {
		t.Errorf("the last progress is %d", last)
	}
}

// What is no message is left out.
func testGarbage(t *testing.T, c *client) {
	in := c.ask(t.Context(), "test/garbage", `"n":10`)
	in.answer()
	c.must("test/echo", "")
}

// When the server dies, what is in flight fails soon, the session is gone, and another one
// can be opened.
func testGone(t *testing.T, c *client) {
	aside := c.listen(t.Context())
	waits := []*inbound{c.ask(t.Context(), "test/wait", ""), c.ask(t.Context(), "test/wait", "")}
	for _, in := range waits {
		in.next()
	}
	die, err := c.try(t.Context(), `{"jsonrpc":"2.0","id":"die","method":"test/die","params":{}}`)
	if err == nil {
		waits = append(waits, c.inbound(die, "die"))
		defer die.Close()
	}
	for _, in := range append(waits, aside) {
		if m, err := Read(in.stream); err == nil {
			t.Errorf("after the death of the server: %+v", m)
		}
	}
	if c.peer.Dead != nil {
		c.peer.Dead()
	}
	if late, err := c.try(t.Context(), `{"jsonrpc":"2.0","id":"next","method":"test/count","params":{}}`); err == nil {
		late.Close()
		t.Error("the old session goes on")
	}
	next := begin(t, c.peer)
	if got := next.must("test/count", ""); got.N != 1 {
		t.Errorf("count %d in a new session", got.N)
	}
}
