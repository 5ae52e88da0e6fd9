package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

// oneConn is a listener with one connection in memory, on which time can be faked.
type oneConn struct {
	conn chan net.Conn
	once sync.Once
	done chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *oneConn) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// dialled serves a stage whose tool answers with a megabyte to one connection.
func dialled(t *testing.T) net.Conn {
	s := newStage(t)
	s.config.ClientTimeout = 10 * time.Second
	s.up.Era = mcp.Legacy
	s.up.Capabilities = []byte(`{"tools":{}}`)
	s.up.Replies = map[string]fakeReply{"tools/call": {Result: []byte(`{"content":[],"pad":"` + strings.Repeat("x", 1<<20) + `"}`)}}
	client, server := net.Pipe()
	l := &oneConn{conn: make(chan net.Conn, 1), done: make(chan struct{})}
	l.conn <- server
	web := http.Server{Handler: s.start()}
	go web.Serve(l)
	t.Cleanup(func() { client.Close(); web.Close() })
	return client
}

// slowly reads or writes 10 KiB each second.
func slowly(size int, step func(n int) (int, error)) error {
	for done := 0; done < size; {
		n, err := step(min(10<<10, size-done))
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", done, err)
		}
		done += n
		<-time.After(time.Second)
	}
	return nil
}

// call is the text of a request with that much padding.
func call(accept string, pad int) string {
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"pad":"` + strings.Repeat("y", pad) + `"},"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	return fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: %s\r\n"+
		"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: t\r\nContent-Length: %d\r\n\r\n%s", accept, len(body), body)
}

// TestSlowClient: a client may take many times client_timeout for a large message,
// in either direction and either form, as long as it goes on.
func TestSlowClient(t *testing.T) {
	for _, accept := range []string{mcp.TypeJSON, mcp.TypeSSE} {
		synctest.Test(t, func(t *testing.T) {
			conn := dialled(t)
			request := call(accept, 900<<10)
			if err := slowly(len(request), func(n int) (int, error) {
				n, err := io.WriteString(conn, request[:n])
				request = request[n:]
				return n, err
			}); err != nil {
				t.Fatalf("%s: sending: %v", accept, err)
			}
			got := 0
			resp := wiretest.Must(http.ReadResponse(bufio.NewReader(conn), nil))(t)
			if err := slowly(1<<20, func(n int) (int, error) {
				m, err := io.CopyN(io.Discard, resp.Body, int64(n))
				got += int(m)
				return int(m), err
			}); err != nil {
				t.Errorf("%s: reading: %v", accept, err)
			}
			if rest, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(rest), `"}`) {
				t.Errorf("%s: the end: %q, %v", accept, rest, err)
			}
		})
	}
}

// TestStoppedClient: one that stops has client_timeout from there.
func TestStoppedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dialled(t)
		request := call(mcp.TypeJSON, 300<<10)
		begin := time.Now()
		wiretest.Must(io.WriteString(conn, request[:200<<10]))(t)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusBadRequest || time.Since(begin) != 10*time.Second {
			t.Errorf("after %v: %v, %v", time.Since(begin), resp, err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		conn := dialled(t)
		wiretest.Must(io.WriteString(conn, call(mcp.TypeJSON, 0)))(t)
		wiretest.Must(io.CopyN(io.Discard, conn, 200<<10))(t)
		<-time.After(11 * time.Second)
		if n, err := io.Copy(io.Discard, conn); err != nil || n > 64<<10 {
			t.Errorf("%d bytes more, %v", n, err)
		}
	})
}

// TestTooLargeCloses: what is left of a body that is too large is not read.
func TestTooLargeCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dialled(t)
		go io.WriteString(conn, call(mcp.TypeJSON, 5<<20))
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
			t.Errorf("%v, %v", resp, err)
		}
		<-time.After(time.Second) // in which the server lets the answer arrive
	})
}

// TestUnreadBody: nobody holds a connection by a body that does not come, also where that is not read.
func TestUnreadBody(t *testing.T) {
	for name, head := range map[string]string{
		"another type":   "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n",
		"no such path":   "POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\n",
		"another origin": "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://evil.example\r\n",
		"another host":   "POST /mcp HTTP/1.1\r\nHost: evil.example\r\n",
		"a GET":          "GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n",
		"a DELETE":       "DELETE /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := dialled(t)
				go io.WriteString(conn, head+"Content-Length: 10\r\n\r\n{")
				_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := io.Copy(io.Discard, conn); err != nil { // no end
					t.Error(err)
				}
			})
		})
	}
}
