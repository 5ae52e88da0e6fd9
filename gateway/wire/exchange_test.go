package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/eventstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
	"taskgate/internal/wiretest"
)

func exchangeFor(accept string, o ExchangeOptions) (*Exchange, *httptest.ResponseRecorder) {
	r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
	r.Header.Set("Accept", accept)
	rec := httptest.NewRecorder()
	return NewExchange(rec, r, o), rec
}

// TestExchangeHasOneEnd lets everything happen at once: one answer goes out, as
// the last message, and nothing is torn.
func TestExchangeHasOneEnd(t *testing.T) {
	for range 50 {
		x, rec := exchangeFor(mcp.TypeAccept, ExchangeOptions{KeepAlive: time.Microsecond})
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() { _ = x.Notify("notifications/progress", []byte(fmt.Sprintf(`{"progress":%d}`, i))) })
			wg.Go(func() { x.Result(jsonrpc.IntID(int64(i)), []byte(`{}`)) })
			wg.Go(func() { x.Error(jsonrpc.IntID(int64(i)), &Failure{Code: mcp.CodeInternal, Message: "no"}) })
		}
		wg.Wait()
		x.Close()
		messages := wiretest.MessagesOf(rec.Header().Get("Content-Type"), rec.Body.Bytes())
		for i, text := range messages {
			m, err := jsonrpc.Parse(text)
			if err != nil {
				t.Fatalf("torn message: %s", text)
			}
			if last := i == len(messages)-1; last != (m.Kind != jsonrpc.Notification) {
				t.Fatalf("message %d of %d is a %s", i+1, len(messages), m.Kind)
			}
		}
		if len(messages) == 0 {
			t.Fatal("no answer")
		}
	}
}

// TestExchangeEventIDs is for the legacy handler: it has resumption, so it counts its
// events, and may begin the stream with one of its own.
func TestExchangeEventIDs(t *testing.T) {
	n := 0
	x, rec := exchangeFor(mcp.TypeAccept, ExchangeOptions{})
	x.Resumable(func(out *eventstream.Writer, m []byte) error { n++; return out.Send(fmt.Sprint("s-", n), m) },
		func(w *eventstream.Writer) error { return w.Prime("s-0") })
	if err := x.Notify("notifications/message", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	x.Error(jsonrpc.IntID(1), &Failure{Code: mcp.CodeMissingCapability, Message: "m", Status: http.StatusBadRequest})
	want := "id: s-0\ndata: \n\n" +
		"id: s-1\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n" +
		"id: s-2\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32021,\"message\":\"m\"}}\n\n"
	if got := rec.Body.String(); rec.Code != http.StatusOK || got != want {
		t.Errorf("%d\n%s\nwant\n%s", rec.Code, got, want)
	}
}

// TestExchangeOverASlowLog: while a message waits for the log of the stream, time goes on for whoever sends another one.
// It would stand still for somebody who waits for a mutex.
func TestExchangeOverASlowLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, rec := exchangeFor(mcp.TypeAccept, ExchangeOptions{})
		defer x.Close()
		x.Resumable(func(out *eventstream.Writer, m []byte) error {
			<-time.After(time.Second)
			return out.Send("", m)
		}, nil)
		go func() { _ = x.Send([]byte(`"first"`)) }()
		synctest.Wait()
		if err := x.Send([]byte(`"second"`)); err != nil {
			t.Fatal(err)
		}
		if got, want := rec.Body.String(), "event: message\ndata: \"first\"\n\nevent: message\ndata: \"second\"\n\n"; got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	})
}

// TestExchangeBroken: the request of a client that does not read any more ends with the first write that fails.
func TestExchangeBroken(t *testing.T) {
	ended := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		x := NewExchange(eventstream.Pace(w, 50*time.Millisecond), r, ExchangeOptions{})
		defer x.Close()
		large := jsonrpc.AppendString(nil, strings.Repeat("x", 1<<20))
		for x.Notify("notifications/message", large) == nil {
			continue
		}
		<-r.Context().Done()
	}))
	defer web.Close()
	conn, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\nContent-Length: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// A client that leaves because it has its answer has not gone; one that left before it was
// complete has, and so has one to whom it could not be written.
func TestExchangeGone(t *testing.T) {
	for name, c := range map[string]struct {
		accept string
		broken bool
		before bool // it leaves before the answer, else after it
		want   bool
	}{
		"stream, before": {mcp.TypeSSE, false, true, true}, "stream, after": {mcp.TypeSSE, false, false, false},
		"stream, broken": {mcp.TypeSSE, true, false, true},
		"JSON, before":   {mcp.TypeAccept, false, true, true}, "JSON, after": {mcp.TypeAccept, false, false, false},
		"JSON, broken": {mcp.TypeAccept, true, false, true},
	} {
		ctx, leave := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", nil)
		r.Header.Set("Accept", c.accept)
		var w http.ResponseWriter = httptest.NewRecorder()
		if c.broken {
			w = &brokenWriter{ResponseRecorder: httptest.NewRecorder()}
		}
		x := NewExchange(w, r, ExchangeOptions{})
		if c.before {
			leave()
		}
		x.Result(jsonrpc.IntID(1), []byte(`{}`))
		leave()
		if got := x.Gone(); got != c.want {
			t.Errorf("%s: gone is %t", name, got)
		}
		x.Close()
		if got := x.Gone(); got != c.want {
			t.Errorf("%s: gone is %t after Close", name, got)
		}
	}
}

// TestExchangeCloseStopsTheTimer: nothing is written once the handler has
// returned.
func TestExchangeCloseStopsTheTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, rec := exchangeFor(mcp.TypeAccept, ExchangeOptions{KeepAlive: time.Second})
		x.Close()
		<-time.After(time.Minute)
		if rec.Body.Len() > 0 || x.Notify("n", nil) == nil {
			t.Errorf("written after Close: %s", rec.Body)
		}
	})
}

func TestAccept(t *testing.T) {
	for text, want := range map[string]accepted{
		"application/json, text/event-stream": {true, true},
		"text/event-stream, application/json": {true, true},
		"APPLICATION/JSON":                    {true, false},
		"text/event-stream;q=0.5":             {false, true},
		"*/*":                                 {true, true},
		"application/*;q=0, text/*":           {false, true},
		"text/html":                           {false, false},
		"":                                    {false, false},
	} {
		if got := acceptOf(http.Header{"Accept": {text}}); got != want {
			t.Errorf("%q: %+v", text, got)
		}
	}
	if got := acceptOf(http.Header{}); got != (accepted{json: true}) {
		t.Errorf("no header: %+v", got)
	}
}

// brokenWriter is a client that has gone away unnoticed: it counts the statuses of an answer whose body cannot be written.
type brokenWriter struct {
	*httptest.ResponseRecorder
	statuses int
}

func (w *brokenWriter) WriteHeader(status int) {
	w.statuses++
	w.ResponseRecorder.WriteHeader(status)
}

func (w *brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestExchangeDrop: without an answer the stream ends, and a client that takes none
// gets a status, and none where a stream has begun, broken as it may be.
func TestExchangeDrop(t *testing.T) {
	for _, accept := range []string{mcp.TypeAccept, mcp.TypeJSON} {
		x, rec := exchangeFor(accept, ExchangeOptions{})
		x.Drop()
		stream := accept != mcp.TypeJSON
		if got := rec.Code == http.StatusOK; got != stream || rec.Body.Len() > 0 {
			t.Errorf("%s: %d %q", accept, rec.Code, rec.Body)
		}
		w := &brokenWriter{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
		r.Header.Set("Accept", accept)
		x = NewExchange(w, r, ExchangeOptions{})
		_ = x.Notify("notifications/progress", []byte(`{}`))
		x.Drop()
		x.Drop()
		if want := map[bool]int{true: 0, false: 1}[stream]; w.statuses != want { // a stream's comes with its first byte
			t.Errorf("%s: %d statuses", accept, w.statuses)
		}
	}
}
