package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"taskgate/internal/mcp"
)

// The server releases its oldest call first, and says when.
func TestReleaser(t *testing.T) {
	r := new(releaser)
	server := httptest.NewServer(r)
	defer server.Close()
	w := &waking{stage: stage{upstream: server.Listener.Addr().String()}}
	p := &parking{stage: w.stage}
	var calls sync.WaitGroup
	ended := make(chan int, 2)
	for i := range 2 {
		calls.Go(func() {
			conn, err := dialHTTP(w.upstream, request(w.upstream, mcp.MethodToolsCall, "hold", `"name":"hold"`, false))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			c := conn.(*httpConn)
			if _, err := c.Write(c.request); err != nil {
				t.Error(err)
			}
			if d, err := c.released(); err != nil || d < 0 {
				t.Errorf("call %d: %v, %v", i, d, err)
			}
			ended <- i
		})
		if err := p.open(t.Context(), i+1); err != nil {
			t.Fatal(err)
		}
	}
	r.release()
	if first := <-ended; first != 0 {
		t.Errorf("call %d was released first", first)
	}
	if err := w.release(t.Context(), time.Millisecond); err != nil {
		t.Error(err)
	}
	calls.Wait()
	if err := w.release(t.Context(), 0); err != nil {
		t.Error(err)
	}
}

// A waiter finds the result in whatever comes before and around it, and tells what
// is none.
func TestWaiterReads(t *testing.T) {
	conn := func(response string) *httpConn {
		client, server := net.Pipe()
		go func() { // ends with the response: the reader reads all of it, or closes
			_, _ = server.Write([]byte(response))
			_ = server.Close()
		}()
		t.Cleanup(func() { client.Close() })
		return newHTTPConn(client, nil)
	}
	stream := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n: k\n\r\n" +
		fmt.Sprintf("40\r\ndata: {\"result\":{\"text\":\"%s%d\"}}\n\n\r\n0\r\n\r\n", releasedAt, time.Now().UnixNano())
	if d, err := conn(stream).released(); err != nil || d < 0 {
		t.Errorf("%v, %v", d, err)
	}
	for _, bad := range []string{
		"HTTP/1.1 404 Not Found\r\n\r\nno session",
		"HTTP/1.1 200 OK\r\n\r\nnothing",
	} {
		if d, err := conn(bad).released(); err == nil {
			t.Errorf("%q: %v", bad, d)
		}
	}
}

func TestWaiterRequests(t *testing.T) {
	legacy := string((&waiter{addr: "h", kind: wakeResult, session: "s"}).request("t"))
	modern := string((&waiter{addr: "h", kind: wakeListen}).request("t"))
	for _, want := range []string{mcp.HeaderSession + ": s\r\n", `"params":{"taskId":"t"}`} {
		if !strings.Contains(legacy, want) {
			t.Errorf("no %q in %s", want, legacy)
		}
	}
	if !strings.Contains(modern, `"taskIds":["t"]`) || strings.Contains(modern, mcp.HeaderName) {
		t.Errorf("%s", modern)
	}
	for _, text := range []string{legacy, modern} {
		if r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text))); err != nil || r.ContentLength <= 0 {
			t.Errorf("%v, %v", r, err)
		}
	}
	if id, err := taskID([]byte(`{"result":{"taskId":"a-1"}}`)); id != "a-1" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
	if _, err := taskID([]byte(`{}`)); err == nil {
		t.Error("no error")
	}
}

func TestReportWake(t *testing.T) {
	found := &woken{
		length: 10 * time.Second,
		times:  map[string][]time.Duration{wakeResult: {time.Millisecond, 2 * time.Millisecond}, wakeListen: {3 * time.Millisecond}},
		cpu:    map[string]time.Duration{"Redis": time.Second},
	}
	var out bytes.Buffer
	if err := reportWake(&out, found, settings{waiters: 5}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| tasks/result, 2025-11-25 | 2 | 2.00 ms | 2.00 ms | 2.00 ms |", "5 waiting", "Redis 10 %"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	delete(found.times, wakeListen)
	if err := reportWake(&out, found, settings{}); err == nil {
		t.Error("no error where nobody heard anything")
	}
}
