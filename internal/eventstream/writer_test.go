package eventstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func newRecorded(t testing.TB, keepAlive time.Duration) (*Writer, *httptest.ResponseRecorder) {
	t.Helper()
	rec := httptest.NewRecorder()
	return NewWriter(rec, keepAlive), rec
}

func TestWriterBytes(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(*Writer) error
		want string
	}{
		{"send", func(w *Writer) error { return w.Send("", []byte(`{"a":1}`)) }, "event: message\ndata: {\"a\":1}\n\n"},
		{"send with id", func(w *Writer) error { return w.Send("s:7", []byte(`x`)) }, "id: s:7\nevent: message\ndata: x\n\n"},
		{"send lines", func(w *Writer) error { return w.Send("", []byte("a\r\nb\n\nc\rd")) }, "event: message\ndata: a\ndata: b\ndata: \ndata: c\ndata: d\n\n"},
		{"send trailing line", func(w *Writer) error { return w.Send("", []byte("a\n")) }, "event: message\ndata: a\ndata: \n\n"},
		{"send nothing", func(w *Writer) error { return w.Send("", nil) }, "event: message\ndata: \n\n"},
		{"prime", func(w *Writer) error { return w.Prime("7") }, "id: 7\ndata: \n\n"},
		{"comment", func(w *Writer) error { return w.Comment("k") }, ": k\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, rec := newRecorded(t, 0)
			if err := tt.do(w); err != nil {
				t.Fatal(err)
			}
			if got := rec.Body.String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// flushes counts how often a response is sent on.
type flushes struct {
	*httptest.ResponseRecorder
	n int
}

func (f *flushes) FlushError() error { f.n++; return nil }

// Corked events wait for each other, and for nothing else.
func TestWriterCork(t *testing.T) {
	to := &flushes{ResponseRecorder: httptest.NewRecorder()}
	w := NewWriter(to, 0)
	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"nothing is held", func() { w.Cork(false) }, 0},
		{"corked", func() { w.Cork(true) }, 0},
		{"corked, an event", func() { w.Send("", []byte("1")) }, 0},
		{"corked, a second one", func() { w.Send("", []byte("2")) }, 0},
		{"let go", func() { w.Cork(false) }, 1},
		{"let go again", func() { w.Cork(false) }, 1},
		{"an event", func() { w.Send("", []byte("3")) }, 2},
		{"corked again, an event, the end", func() { w.Cork(true); w.Send("", []byte("4")); w.Close(); w.Cork(false) }, 2}, // the server sends the rest
	} {
		if step.do(); to.n != step.want {
			t.Errorf("%s: %d flushes, want %d", step.name, to.n, step.want)
		}
	}
	if n := strings.Count(to.Body.String(), "data: "); n != 4 {
		t.Errorf("%d events", n)
	}
}

func TestWriterHeaders(t *testing.T) {
	w, rec := newRecorded(t, 0)
	if rec.Flushed {
		t.Error("flushed before anything was written")
	}
	if err := w.Comment("x"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Content-Type":      "text/event-stream",
		"Cache-Control":     "no-cache, no-transform",
		"X-Accel-Buffering": "no",
	} {
		if got := rec.Result().Header.Get(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

type unflushable struct{ http.ResponseWriter }

func TestWriterNeedsFlush(t *testing.T) {
	w := NewWriter(unflushable{httptest.NewRecorder()}, 0)
	if err := w.Comment("x"); err == nil {
		t.Error("a response that cannot be flushed became a stream")
	}
}

func TestWriterClose(t *testing.T) {
	w, rec := newRecorded(t, 0)
	w.Close()
	w.Close()
	if err := w.Send("", []byte("x")); err != ErrClosed {
		t.Errorf("Send after Close: %v", err)
	}
	if err := w.Err(); err != nil {
		t.Errorf("Err after Close: %v", err)
	}
	if rec.Body.Len() > 0 {
		t.Errorf("written: %q", rec.Body)
	}
}

func TestWriterBadID(t *testing.T) {
	w, rec := newRecorded(t, 0)
	if err := w.Send("a\nb", nil); err == nil || rec.Body.Len() > 0 {
		t.Errorf("%v, %q", err, rec.Body)
	}
	if err := w.Send("a", nil); err != nil {
		t.Errorf("a refused id ended the stream: %v", err)
	}
}

// failing is a response that breaks on its nth write.
type failing struct {
	*httptest.ResponseRecorder
	left int
}

var errBroken = errors.New("broken")

func (f *failing) Write(p []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errBroken
	}
	return f.ResponseRecorder.Write(p)
}

func (f *failing) FlushError() error { return nil }

func TestWriterFirstErrorStays(t *testing.T) {
	rec := &failing{httptest.NewRecorder(), 4}
	w := NewWriter(rec, time.Hour)
	defer w.Close()
	if err := w.Send("", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := w.Send("", []byte("y")); err != errBroken || w.Err() != errBroken {
		t.Errorf("%v, %v", err, w.Err())
	}
	rec.left = 100
	if err := w.Send("", []byte("z")); err != errBroken {
		t.Errorf("a broken stream was written to: %v", err)
	}
}

func TestWriterKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, rec := newRecorded(t, 15*time.Second)
		after := func(d time.Duration, want string) {
			t.Helper()
			<-time.After(d)
			synctest.Wait()
			w.turn.Take() // the timer writes under it
			defer w.turn.Give()
			if got := rec.Body.String(); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		}
		after(14*time.Second, "")
		after(2*time.Second, ": k\n")
		after(15*time.Second, ": k\n: k\n")
		after(10*time.Second, ": k\n: k\n")
		if err := w.Send("", []byte("x")); err != nil { // starts the silence anew
			t.Fatal(err)
		}
		after(14*time.Second, ": k\n: k\nevent: message\ndata: x\n\n")
		after(2*time.Second, ": k\n: k\nevent: message\ndata: x\n\n: k\n")
		w.Close()
		after(time.Hour, ": k\n: k\nevent: message\ndata: x\n\n: k\n")
	})
}

// pipeListener accepts one in-memory connection, on which time can be faked.
type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// overPipes runs a test in fake time with a server of this handler. dial connects to it.
func overPipes(t *testing.T, handler http.HandlerFunc, run func(t *testing.T, dial func() net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &pipeListener{conns: make(chan net.Conn, 1), done: make(chan struct{})}
		srv := &http.Server{Handler: handler}
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		run(t, func() net.Conn {
			client, server := net.Pipe()
			l.conns <- server
			return client
		})
		if err := srv.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-served
	})
}

const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// A peer that stops reading costs one write timeout, and the stream ends.
func TestWriterTimeout(t *testing.T) {
	type outcome struct {
		err  error
		took time.Duration
	}
	var result chan outcome // a channel belongs to the bubble that it is made in
	overPipes(t, func(rw http.ResponseWriter, _ *http.Request) {
		w := NewWriter(Pace(rw, 3*time.Second), time.Second)
		defer w.Close()
		begin := time.Now()
		err := w.Send("", []byte(strings.Repeat("x", 100_000)))
		result <- outcome{errors.Join(err, w.Err()), time.Since(begin)}
	}, func(t *testing.T, dial func() net.Conn) {
		result = make(chan outcome, 1)
		client := dial()
		fmt.Fprint(client, get)
		if got := <-result; !errors.Is(got.err, os.ErrDeadlineExceeded) || got.took != 3*time.Second {
			t.Errorf("after %v: %v", got.took, got.err)
		}
		client.Close()
	})
}

// A peer that reads slowly gets a large event whole, in many times the write
// timeout; one that stops in the middle has that timeout from there.
func TestWriterSlowPeer(t *testing.T) {
	const size = 1 << 20
	var result chan error
	overPipes(t, func(rw http.ResponseWriter, _ *http.Request) {
		w := NewWriter(Pace(rw, 10*time.Second), 0)
		defer w.Close()
		result <- w.Send("", []byte(strings.Repeat("x", size)))
	}, func(t *testing.T, dial func() net.Conn) {
		result = make(chan error, 1)
		for _, read := range []int64{size, size / 2} {
			client := dial()
			fmt.Fprint(client, get)
			begin := time.Now()
			for got := int64(0); got < read; {
				n, err := io.CopyN(io.Discard, client, min(10<<10, read-got))
				if got += n; err != nil {
					t.Fatalf("after %d bytes and %v: %v", got, time.Since(begin), err)
				}
				<-time.After(time.Second)
			}
			stopped := time.Now()
			if read == size {
				go io.Copy(io.Discard, client)
				if err := <-result; err != nil {
					t.Error(err)
				}
			} else if err := <-result; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(stopped) > 10*time.Second {
				t.Errorf("%v after it stopped: %v", time.Since(stopped), err)
			}
			client.Close()
		}
	})
}

// Silence longer than the write timeout is no error, and the connection is
// fit for another request afterwards.
func TestWriterOutlivesItsDeadline(t *testing.T) {
	overPipes(t, func(rw http.ResponseWriter, _ *http.Request) {
		w := NewWriter(Pace(rw, time.Second), 0)
		for range 3 {
			if err := w.Send("", []byte("x")); err != nil {
				t.Error(err)
			}
			<-time.After(time.Minute)
		}
		w.Close()
	}, func(t *testing.T, dial func() net.Conn) {
		client := dial()
		br := bufio.NewReader(client)
		for range 2 {
			fmt.Fprint(client, get)
			res, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if evs, err := all(NewReader(res.Body, 100)); len(evs) != 3 || err != io.EOF {
				t.Errorf("%d events, %v", len(evs), err)
			}
		}
		client.Close()
	})
}

// Many senders on one real connection: every event arrives whole.
func TestWriterConcurrentSend(t *testing.T) {
	const senders, events = 8, 100
	line := strings.Repeat("x", 3000)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w := NewWriter(rw, time.Millisecond)
		defer w.Close()
		var wg sync.WaitGroup
		for s := range senders {
			wg.Go(func() {
				for n := range events {
					id := fmt.Sprintf("%d-%d", s, n)
					if err := errors.Join(w.Comment("c"), w.Send(id, []byte(id+"\n"+line))); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}))
	defer srv.Close()
	res, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	evs, err := all(NewReader(res.Body, 4000))
	if err != io.EOF || len(evs) != senders*events {
		t.Fatalf("%d events, %v", len(evs), err)
	}
	next := map[string]int{}
	for _, ev := range evs {
		sender, n, _ := strings.Cut(ev.ID, "-")
		if string(ev.Data) != ev.ID+"\n"+line || n != fmt.Sprint(next[sender]) {
			t.Fatalf("event %q out of order or broken: %.40q", ev.ID, ev.Data)
		}
		next[sender]++
	}
}

// What is written is what is read, but for the spelling of line ends.
func TestWriterReader(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.StringOf(rapid.RuneFrom([]rune("a :\n\ré"))).Draw(t, "data")
		id := rapid.StringMatching(`[a-z0-9: ]*`).Draw(t, "id")
		rec := httptest.NewRecorder()
		w := NewWriter(rec, 0)
		if err := errors.Join(w.Comment("k"), w.Send(id, []byte(data))); err != nil {
			t.Fatal(err)
		}
		evs, err := all(NewReader(rec.Body, 1<<20))
		want := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(data)
		if err != io.EOF || len(evs) != 1 || string(evs[0].Data) != want || evs[0].ID != id || evs[0].HasID != (id != "") {
			t.Fatalf("%q: %+v, %v", data, evs, err)
		}
	})
}
