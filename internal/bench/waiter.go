package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"taskgate/internal/mcp"
)

// waiter is a client that waits for the end of one task after the other.
type waiter struct {
	addr    string
	kind    string
	session string // of a legacy client
	times   []time.Duration
}

// run waits for tasks until ctx ends. begun is called once, when the first wait has
// begun or cannot begin.
func (w *waiter) run(ctx context.Context, tasks <-chan string, begun func()) error {
	ready := func() {
		if begun != nil {
			begun()
			begun = nil
		}
	}
	defer ready()
	if w.kind == wakeResult {
		session, err := newSession(ctx, w.addr)
		if err != nil {
			return fmt.Errorf("begin a session: %w", err)
		}
		w.session = session
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-tasks:
			d, err := w.wait(ctx, id, ready)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return fmt.Errorf("%s: %w", w.kind, err)
			}
			w.times = append(w.times, d)
		}
	}
}

// wait waits for one task and returns how long its result was on its way.
func (w *waiter) wait(ctx context.Context, id string, begun func()) (time.Duration, error) {
	conn, err := dialHTTP(w.addr, w.request(id))
	if err != nil {
		return 0, err
	}
	c := conn.(*httpConn)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write(c.request); err != nil {
		return 0, err
	}
	begun()
	return c.released()
}

// request asks for the end of a task, in the words of the kind.
func (w *waiter) request(id string) []byte {
	if w.kind == wakeListen {
		return request(w.addr, mcp.MethodListen, "", `"notifications":{"taskIds":["`+id+`"]}`, true)
	}
	body := `{"jsonrpc":"2.0","id":1,"method":"` + mcp.MethodTasksResult + `","params":{"taskId":"` + id + `"}}`
	return fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nAccept: %s\r\n%s: %s\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s",
		w.addr, mcp.TypeJSON, mcp.TypeAccept, mcp.HeaderProtocolVersion, mcp.Version20251125, mcp.HeaderSession, w.session, len(body), body)
}

// released reads until there is a result of the releasing server, and returns how old
// that is. What else the response has, and how it is framed, does not matter: the text
// ends with a quotation mark.
func (c *httpConn) released() (time.Duration, error) {
	status, err := c.line()
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.1 200 ")) {
		first := string(status)
		rest, _ := io.ReadAll(io.LimitReader(c.in, 500))
		return 0, fmt.Errorf("%s\n%s", first, rest)
	}
	for {
		text, err := c.in.ReadSlice('"')
		if err != nil {
			return 0, err
		}
		digits, ok := bytes.CutPrefix(text[:len(text)-1], []byte(releasedAt))
		if !ok {
			continue
		}
		now := time.Now()
		at, err := strconv.ParseInt(string(digits), 10, 64)
		return now.Sub(time.Unix(0, at)), err
	}
}

// taskID finds the id of the task in an answer.
func taskID(body []byte) (string, error) {
	_, rest, _ := bytes.Cut(body, []byte(`"taskId":"`))
	id, _, ok := bytes.Cut(rest, []byte(`"`))
	if !ok {
		return "", fmt.Errorf("no task was made: %.300q", body)
	}
	return string(id), nil
}

// postLegacy posts a message of a legacy client whose answer does not matter.
func postLegacy(ctx context.Context, addr, session, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/mcp", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", mcp.TypeJSON)
	r.Header.Set("Accept", mcp.TypeAccept)
	if session != "" {
		r.Header.Set(mcp.HeaderSession, session)
		r.Header.Set(mcp.HeaderProtocolVersion, mcp.Version20251125)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode/100 != 2 {
		err = errors.Join(err, errors.New(resp.Status))
	}
	return resp, err
}
