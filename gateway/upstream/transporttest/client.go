package transporttest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/gateway/upstream/transport"
	"taskgate/internal/jsonrpc"
)

// limit bounds each request, and again for how long a server is waited for that has died.
const limit = 20 * time.Second

// client is one session with a peer.
type client struct {
	t       *testing.T
	peer    *Peer
	session string
	serial  atomic.Int64
}

// begin opens a session.
func begin(t *testing.T, p *Peer) *client { return beginWith(t, p, `{}`) }

// beginWith opens a session with these parameters.
func beginWith(t *testing.T, p *Peer, params string) *client {
	t.Helper()
	c := &client{t: t, peer: p}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); ; <-tick.C {
		first, err := c.try(t.Context(), `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":`+params+`}`)
		if err != nil {
			if time.Now().After(deadline) {
				t.Fatalf("initialize: %v", err)
			}
			continue
		}
		c.session = first.Head().Session
		in := c.inbound(first, "hello")
		result(t, in.answer())
		c.tell("notifications/initialized", `{}`)
		return c
	}
}

// try sends one message, whose stream ends with the test at the latest.
func (c *client) try(ctx context.Context, body string) (transport.Stream, error) {
	c.t.Helper()
	return Send(c.bounded(ctx), c.peer.Transport, Message(c.session, body))
}

func (c *client) bounded(ctx context.Context) context.Context {
	ctx, cancel := context.WithTimeout(ctx, limit)
	c.t.Cleanup(cancel)
	return ctx
}

// do is try for a message that is not refused.
func (c *client) do(ctx context.Context, body string) transport.Stream {
	c.t.Helper()
	in, err := c.try(ctx, body)
	if err != nil {
		c.t.Fatalf("%s: %v", body[:min(len(body), 100)], err)
	}
	if in != nil {
		c.t.Cleanup(in.Close)
	}
	return in
}

// tell sends a notification.
func (c *client) tell(method, params string) {
	c.t.Helper()
	c.do(c.t.Context(), fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params))
}

// ask sends a request with these members of its parameters.
func (c *client) ask(ctx context.Context, method, members string) *inbound {
	c.t.Helper()
	id := fmt.Sprintf("id-%d-", c.serial.Add(1))
	if members != "" {
		members = "," + members
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":{"_meta":{"progressToken":%q}%s}}`, id, method, id, members)
	return c.inbound(c.do(ctx, body), id)
}

// must is ask for a request that is answered with a result.
func (c *client) must(method, members string) answered {
	c.t.Helper()
	return result(c.t, c.ask(c.t.Context(), method, members).answer())
}

// listen opens the stream of what belongs to no request.
func (c *client) listen(ctx context.Context) *inbound {
	c.t.Helper()
	in, err := c.peer.Transport.Listen(c.bounded(ctx), Message(c.session, ""))
	if err != nil {
		c.t.Fatalf("listening: %v", err)
	}
	c.t.Cleanup(in.Close)
	return c.inbound(in, "")
}

// answered is the result of all methods.
type answered struct {
	Text string
	N    int
}

func result(t *testing.T, m jsonrpc.Message) (a answered) {
	t.Helper()
	if m.Error != nil || json.Unmarshal(m.Result, &a) != nil {
		t.Errorf("the answer is %+v", m)
	}
	return a
}

// inbound reads a stream. Notifications are kept, and requests of the server are answered.
type inbound struct {
	t      *testing.T
	c      *client
	id     string
	stream transport.Stream
	reply  string // the result for the server
	heard  []jsonrpc.Message
}

func (c *client) inbound(in transport.Stream, id string) *inbound {
	return &inbound{t: c.t, c: c, id: id, stream: in}
}

// next is read where there has to be a message.
func (in *inbound) next() jsonrpc.Message {
	in.t.Helper()
	m, err := Read(in.stream)
	if err != nil {
		in.t.Fatalf("reading the response: %v", err)
	}
	return m
}

// answer reads until the answer, which has to be the last message.
func (in *inbound) answer() jsonrpc.Message {
	in.t.Helper()
	for {
		switch m := in.next(); m.Kind {
		case jsonrpc.Notification:
			in.heard = append(in.heard, m)
		case jsonrpc.Request:
			in.c.do(in.t.Context(), string(jsonrpc.AppendResult(nil, m.ID, []byte(in.reply))))
		default:
			if m.ID.Key() != jsonrpc.StringID(in.id).Key() {
				in.t.Errorf("the answer to %s has the id %s", in.id, m.ID)
			}
			if more, err := Read(in.stream); err != io.EOF {
				in.t.Errorf("after the answer: %+v, %v", more, err)
			}
			return m
		}
	}
}
