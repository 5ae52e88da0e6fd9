package legacy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
	"taskgate/internal/work"
)

// mostPerStream is how many goroutines an open GET stream may have: two of net/http for its connection, and the one
// that listens to the server.
const mostPerStream = 3

// An open GET stream on which nothing happens has few goroutines.
func TestGoroutinesOfIdleStreams(t *testing.T) {
	const streams = 100
	url := startAlone(t, upstream.Config{URL: serveWithoutStreams(t)}, nil).url
	for range streams {
		openGETStream(t, url)
	}
	ctx, stop := context.WithTimeout(t.Context(), wiretest.Patience)
	defer stop()
	for { // those of the handshakes end soon
		if got := goroutinesOfMany(streams); got == mostPerStream {
			return
		} else if work.Pause(ctx, 50*time.Millisecond) != nil {
			t.Fatalf("each stream has %d goroutines", got)
		}
	}
}

// goroutinesOfMany is how many goroutines each of many things has: as often as there are n goroutines or more in one
// place.
func goroutinesOfMany(n int) (each int) {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1) // it never fails
	for _, place := range regexp.MustCompile(`(?m)^(\d+) @`).FindAllStringSubmatch(all.String(), -1) {
		count, _ := strconv.Atoi(place[1])
		each += count / n
	}
	return each
}

// serveWithoutStreams puts a legacy server on a socket that has sessions, and no GET stream.
func serveWithoutStreams(t *testing.T) string {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, err := jsonrpc.Parse(body)
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case err != nil:
			w.WriteHeader(http.StatusBadRequest)
		case m.Kind != jsonrpc.Request:
			w.WriteHeader(http.StatusAccepted)
		case m.Method == mcp.MethodInitialize:
			w.Header().Set(mcp.HeaderSession, "one")
			w.Header().Set("Content-Type", mcp.TypeJSON)
			_, _ = w.Write(jsonrpc.AppendResult(nil, m.ID, []byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"peer","version":"1"}}`)))
		default:
			w.Header().Set("Content-Type", mcp.TypeJSON)
			_, _ = w.Write(jsonrpc.AppendError(nil, m.ID, &jsonrpc.Error{Code: mcp.CodeMethodNotFound, Message: "no " + m.Method}))
		}
	}))
	t.Cleanup(web.Close)
	return web.URL
}

// openGETStream begins a session at a gateway, and opens its GET stream, on one connection that has no goroutine here.
func openGETStream(t *testing.T, endpoint string) {
	t.Helper()
	to := wiretest.Must(url.Parse(endpoint))(t)
	conn := wiretest.Must(net.Dial("tcp", to.Host))(t)
	t.Cleanup(func() { conn.Close() })
	wiretest.Check(t, conn.SetDeadline(time.Now().Add(wiretest.Patience)))
	in := textproto.NewReader(bufio.NewReaderSize(conn, 512))
	send := func(method, session, body string) http.Header {
		t.Helper()
		head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n", method, to.Path, to.Host, len(body))
		if session != "" {
			head += "Mcp-Session-Id: " + session + "\r\nMcp-Protocol-Version: 2025-11-25\r\n"
		}
		_, err := io.WriteString(conn, head+"\r\n"+body)
		wiretest.Check(t, err)
		status := wiretest.Must(in.ReadLine())(t)
		got := http.Header(wiretest.Must(in.ReadMIMEHeader())(t))
		if !strings.Contains(status, " 20") {
			t.Fatalf("%s: %s", method, status)
		}
		if n := got.Get("Content-Length"); n != "" && n != "0" {
			var length int64
			_, err := fmt.Sscan(n, &length)
			wiretest.Check(t, err)
			_, err = io.CopyN(io.Discard, in.R, length)
			wiretest.Check(t, err)
		}
		return got
	}
	session := send("POST", "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`).Get(mcp.HeaderSession)
	send("POST", session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	send("GET", session, "")
	for line := ""; !strings.HasPrefix(line, ": open"); {
		line = wiretest.Must(in.ReadLine())(t)
	}
}
