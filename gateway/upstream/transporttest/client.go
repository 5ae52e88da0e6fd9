package transporttest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
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
		resp, err := c.try(t.Context(), http.MethodPost, `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":`+params+`}`)
		if err != nil {
			if time.Now().After(deadline) {
				t.Fatalf("initialize: %v", err)
			}
			continue
		}
		c.session = resp.Header.Get(mcp.HeaderSession)
		in := c.inbound(resp, "hello")
		result(t, in.answer())
		c.tell("notifications/initialized", `{}`)
		return c
	}
}

// try sends one HTTP request, which ends with the test at the latest.
func (c *client) try(ctx context.Context, method, body string) (*http.Response, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	c.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, c.peer.URL, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Accept", mcp.TypeAccept)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", mcp.TypeJSON)
	}
	if c.session != "" {
		req.Header.Set(mcp.HeaderSession, c.session)
	}
	return c.peer.Transport.RoundTrip(req)
}

// do is try for a request that has a response.
func (c *client) do(ctx context.Context, method, body string) *http.Response {
	c.t.Helper()
	resp, err := c.try(ctx, method, body)
	if err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// tell posts what is not answered.
func (c *client) tell(method, params string) {
	c.t.Helper()
	resp := c.do(c.t.Context(), http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params))
	if resp.StatusCode/100 != 2 {
		c.t.Errorf("%s: %s", method, resp.Status)
	}
}

// ask sends a request with these members of its parameters.
func (c *client) ask(ctx context.Context, method, members string) *inbound {
	c.t.Helper()
	id := fmt.Sprintf("id-%d-", c.serial.Add(1))
	if members != "" {
		members = "," + members
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":{"_meta":{"progressToken":%q}%s}}`, id, method, id, members)
	return c.inbound(c.do(ctx, http.MethodPost, body), id)
}

// must is ask for a request that is answered with a result.
func (c *client) must(method, members string) answered {
	c.t.Helper()
	return result(c.t, c.ask(c.t.Context(), method, members).answer())
}

// get opens the stream of what belongs to no request.
func (c *client) get(ctx context.Context) *inbound {
	c.t.Helper()
	return c.inbound(c.do(ctx, http.MethodGet, ""), "")
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

// inbound reads a response. Notifications are kept, and requests of the server are answered.
type inbound struct {
	t       *testing.T
	c       *client
	id      string
	body    io.ReadCloser
	events  *eventstream.Reader
	reply   string // the result for the server
	lenient bool   // what is no message is left out
	heard   []jsonrpc.Message
}

func (c *client) inbound(resp *http.Response, id string) *inbound {
	c.t.Helper()
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != mcp.TypeSSE {
		c.t.Fatalf("the response is %s, %q", resp.Status, kind)
	}
	return &inbound{t: c.t, c: c, id: id, body: resp.Body}
}

// read reads the next message.
func (in *inbound) read() (jsonrpc.Message, error) {
	if in.events == nil {
		in.events = eventstream.NewReader(in.body, 32<<20, nil)
	}
	for {
		ev, err := in.events.Next()
		if err != nil {
			return jsonrpc.Message{}, err
		}
		m, err := jsonrpc.ParseLenient([]byte(string(ev.Data))) // the event's data is the reader's
		if err == nil || !in.lenient {
			return m, err
		}
	}
}

// next is read where there has to be a message.
func (in *inbound) next() jsonrpc.Message {
	in.t.Helper()
	m, err := in.read()
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
			resp := in.c.do(in.t.Context(), http.MethodPost, string(jsonrpc.AppendResult(nil, m.ID, []byte(in.reply))))
			if resp.StatusCode/100 != 2 {
				in.t.Errorf("answering a question: %s", resp.Status)
			}
		default:
			if m.ID.Key() != jsonrpc.StringID(in.id).Key() {
				in.t.Errorf("the answer to %s has the id %s", in.id, m.ID)
			}
			if more, err := in.read(); err != io.EOF {
				in.t.Errorf("after the answer: %+v, %v", more, err)
			}
			return m
		}
	}
}
