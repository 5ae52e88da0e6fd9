package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"taskgate/internal/eventstream"
)

// clientHost is the name of the host of all clients.
const clientHost = "clients"

// client makes one call, and remembers what it heard. It asks any replica.
type client struct {
	w    *World
	call *Call
	rand *rand.Rand
	http *http.Client

	replica string // the one that is asked
	session string // of a legacy client
	serial  int
}

// errCut says that the answer did not come, or not whole.
var errCut = errors.New("cut")

// message is what a client has to know of a message.
type message struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
	}
}

func (w *World) newClient(call *Call, r *rand.Rand) *client {
	c := &client{w: w, call: call, rand: r}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return w.net.Dial(ctx, clientHost, host)
		},
		MaxIdleConnsPerHost: 2, IdleConnTimeout: 5 * time.Second,
	}}
	return c
}

// pause lets some time pass.
func (c *client) pause() { <-time.After(time.Duration(300+c.rand.IntN(1500)) * time.Millisecond) }

// chance is true once in n times.
func (c *client) chance(n int) bool { return c.rand.IntN(n) == 0 }

// request is one HTTP request of a client.
type request struct {
	verb, path, body string
	header           map[string]string
	patience         time.Duration   // 90 s if zero
	ctx              context.Context // ends the request; nil for context.Background()
	slow             bool            // the answer is read slowly
	// hear is called with each message, and its event id. If it returns true, the rest is left unread.
	hear func(id string, m message, text []byte) (done bool)
}

// send sends a request to some replica. It returns the status, and the header of the response.
func (c *client) send(r request) (int, http.Header, error) {
	c.replica = c.w.pick(c.rand)
	return c.sendTo(c.replica, r)
}

func (c *client) sendTo(replica string, r request) (int, http.Header, error) {
	patience := r.patience
	if patience == 0 {
		patience = 90 * time.Second
	}
	if r.ctx == nil {
		r.ctx = context.Background()
	}
	ctx, stop := context.WithTimeout(r.ctx, patience)
	defer stop()
	q, err := http.NewRequestWithContext(ctx, r.verb, "http://"+replica+r.path, strings.NewReader(r.body))
	if err != nil {
		return 0, nil, err
	}
	q.Host = "127.0.0.1"
	q.Header.Set("Authorization", "Bearer key-"+c.call.owner)
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range r.header {
		q.Header.Set(k, v)
	}
	resp, err := c.http.Do(q)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header, c.read(resp, r)
}

// read reads the messages of a response. It returns errCut if an event stream ends before hear is done.
func (c *client) read(resp *http.Response, r request) error {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		c.hear(r, "", b)
		return nil
	}
	body := io.Reader(resp.Body)
	if r.slow {
		body = slowReader{body}
	}
	events := eventstream.NewReader(body, 1<<20)
	for {
		e, err := events.Next()
		if err != nil {
			return errCut
		}
		if c.hear(r, e.ID, e.Data) {
			return nil
		}
	}
}

// slowReader reads 20 kB in a second.
type slowReader struct{ io.Reader }

// Read implements io.Reader.
func (s slowReader) Read(b []byte) (int, error) {
	<-time.After(100 * time.Millisecond)
	return s.Reader.Read(b[:min(len(b), 2000)])
}

func (c *client) hear(r request, id string, text []byte) bool {
	c.w.Judge.Overhear(c.call.owner, text)
	var m message
	_ = json.Unmarshal(text, &m) // what is no message is heard as an empty one
	return r.hear != nil && r.hear(id, m, text)
}

// modernMeta is what each request of a modern client carries.
func modernMeta(tasks bool) string {
	extension := ""
	if tasks {
		extension = `"io.modelcontextprotocol/tasks":{}`
	}
	return `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"sim","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}},"extensions":{` + extension + `}}}`
}

// askModern sends a request of 2026-07-28, and returns the answer.
func (c *client) askModern(replica, path, method, name, params string, tasks bool, patience time.Duration) (answer message, err error) {
	c.serial++
	if params != "" {
		params += ","
	}
	r := request{
		verb: http.MethodPost, path: path, patience: patience,
		body:   fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"%s","params":{%s%s}}`, c.serial, method, params, modernMeta(tasks)),
		header: map[string]string{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name},
	}
	heard := false
	r.hear = func(_ string, m message, _ []byte) bool {
		if m.ID != nil && m.Method == "" {
			answer, heard = m, true
		}
		return heard
	}
	if replica == "" {
		_, _, err = c.send(r)
	} else {
		_, _, err = c.sendTo(replica, r)
	}
	if err == nil && !heard {
		err = errCut
	}
	return answer, err
}
