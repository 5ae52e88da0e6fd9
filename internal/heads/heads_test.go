package heads

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// served is a server behind a guard. It answers with the method, the number of fields and the body of a request.
type served struct {
	t       *testing.T
	guard   *Guard
	addr    string
	refused atomic.Int32
}

func serve(t *testing.T, l Limits) *served {
	t.Helper()
	s := &served{t: t}
	s.guard = New(l, func() { s.refused.Add(1) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = listener.Addr().String()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %d %d %v trailers %d", r.Method, countFields(r.Header), len(body), err, len(r.Trailer))
	})}
	s.guard.Use(server)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(s.guard.Listener(listener)) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return s
}

// dial opens a connection, and sends something on it.
func (s *served) dial(text string) net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	s.send(c, text)
	return c
}

func (s *served) send(c net.Conn, text string) {
	s.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		s.t.Fatal(err)
	}
}

// answers reads answers, each as its status and body.
func (s *served) answers(from *bufio.Reader, n int) (all []string) {
	s.t.Helper()
	for range n {
		resp, err := http.ReadResponse(from, nil)
		if err != nil {
			s.t.Fatalf("after %q: %v", all, err)
		}
		body, _ := io.ReadAll(resp.Body)
		all = append(all, fmt.Sprint(resp.StatusCode, " ", string(body)))
	}
	return all
}

// want sends a text on a connection of its own, and compares the answers.
func (s *served) want(text string, want ...string) {
	s.t.Helper()
	if got := s.answers(bufio.NewReader(s.dial(text)), len(want)); strings.Join(got, "\n") != strings.Join(want, "\n") {
		s.t.Errorf("%.60q: %q", text, got)
	}
}

func fields(n int) string { return strings.Repeat("A:b\r\n", n) }

var wide = Limits{Bytes: 32 << 10, Fields: 200, All: 1 << 20}

// TestBounds: a head may have as many bytes and fields as the limits say, and no more.
func TestBounds(t *testing.T) {
	s := serve(t, wide)
	const post = "POST / HTTP/1.1\r\nHost: x\r\n"
	long := func(n int) string {
		return post + "L: " + strings.Repeat("x", n-len(post)-len("L: \r\n\r\n")) + "\r\n\r\n"
	}
	refused := "431 431 Request Header Fields Too Large"
	s.want(post+fields(199)+"\r\n", "200 POST 199 0 <nil> trailers 0")
	s.want(post+fields(200)+"\r\n", refused)
	s.want(post+fields(7500), refused) // unfinished
	s.want(strings.ReplaceAll(post+fields(200)+"\r\n", "\r", ""), refused)
	s.want(long(32<<10), "200 POST 1 0 <nil> trailers 0")
	s.want(long(32<<10+1), refused)
	s.want("POST / HTTP/1.1\r\nHost: x\r\nL: "+strings.Repeat("x", 100<<10), refused)
	if n := s.refused.Load(); n != 5 {
		t.Errorf("%d were refused", n)
	}
}

// TestBodies: lines of bodies do not count, whatever comes together on a connection.
func TestBodies(t *testing.T) {
	s := serve(t, wide)
	lines := strings.Repeat("\n", 3000)
	var text, chunked strings.Builder
	var want []string
	for _, n := range []int{0, 1, 300, 3000} {
		fmt.Fprintf(&text, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s", n, fields(150), lines[:n])
		fmt.Fprintf(&chunked, "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n%s\r\n%x\r\n%s\r\n0\r\nT: t\r\n\r\n", fields(150), max(n, 1), lines[:max(n, 1)])
		want = append(want, fmt.Sprintf("200 POST 151 %d <nil> trailers 0", n))
	}
	text.WriteString("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	s.want(text.String(), append(want, "200 GET 0 0 <nil> trailers 0")...)
	s.want(text.String()+chunked.String()+text.String()+"\r\nGET / HTTP/1.1\r\nHost: x\r\n"+fields(200)+"\r\n",
		append(append(append(append(want, "200 GET 0 0 <nil> trailers 0"), "200 POST 150 1 <nil> trailers 0", "200 POST 150 1 <nil> trailers 0", "200 POST 150 300 <nil> trailers 0",
			"200 POST 150 3000 <nil> trailers 0"), append(want, "200 GET 0 0 <nil> trailers 0")...), "431 431 Request Header Fields Too Large")...)
}

// TestBehindChunks: net/http may have read a head with the chunks before it. Then it is counted once it is complete.
func TestBehindChunks(t *testing.T) {
	s := serve(t, wide)
	const chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
	s.want(chunked+"GET / HTTP/1.1\r\nHost: x\r\n"+fields(300)+"\r\n", "200 POST 0 1 <nil> trailers 0", "431 Request Header Fields Too Large\n")
	s.want(chunked+"GET / HTTP/1.1\r\nHost: x\r\n"+fields(1000)+fields(300)+"\r\n", "200 POST 0 1 <nil> trailers 0", "431 431 Request Header Fields Too Large")
	s.want(chunked+chunked+"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "200 POST 0 1 <nil> trailers 0", "200 POST 0 1 <nil> trailers 0", "200 GET 0 0 <nil> trailers 0")
}

// TestPieces: a head may come byte by byte, also the next one on a connection.
func TestPieces(t *testing.T) {
	s := serve(t, wide)
	c := s.dial("")
	answers := bufio.NewReader(c)
	for range 3 {
		in := iotest.OneByteReader(strings.NewReader("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n\n\n\n"))
		if _, err := io.Copy(c, in); err != nil {
			t.Fatal(err)
		}
		if got := s.answers(answers, 1)[0]; got != "200 POST 1 3 <nil> trailers 0" {
			t.Error(got)
		}
	}
}

// TestUnfinished: what all unfinished heads hold is bounded. The oldest connection ends, and whoever finishes its head
// in time is served. Nothing is counted once all are over.
func TestUnfinished(t *testing.T) {
	s := serve(t, Limits{Bytes: 32 << 10, Fields: 200, All: 100 << 10})
	head := "POST / HTTP/1.1\r\nHost: x\r\nL: " + strings.Repeat("x", 20<<10)
	first := s.dial(head)
	for range 20 {
		s.dial(head)
	}
	if n, err := first.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes are read on the oldest connection", n)
	}
	for s.refused.Load() < 21-4 { // until all heads are there, of which four have room: a later one would be older than these
		<-time.After(time.Millisecond)
	}
	s.want("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "200 GET 0 0 <nil> trailers 0")
	s.want(head+"\r\n\r\n", "200 POST 1 0 <nil> trailers 0")
	s.guard.mu.Lock()
	defer s.guard.mu.Unlock()
	if s.guard.held > 100<<10 || s.refused.Load() == 0 {
		t.Errorf("%d bytes are held", s.guard.held)
	}
}

// FuzzScanner: a head ends where net/http ends it, however it is cut.
func FuzzScanner(f *testing.F) {
	for _, text := range []string{"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\nrest", "GET / HTTP/1.1\nHost: x\n\n\n", "\r\nGET / HTTP/1.1\r\nHost:x\r\n b\r\n\r\n", "GET / HTTP/1.1\r\nA: b\r\r\n\r\n"} {
		f.Add(text, 3)
	}
	f.Fuzz(func(t *testing.T, text string, cut int) {
		all := scanner{}
		complete := all.scan([]byte(text))
		in := bufio.NewReader(strings.NewReader(text))
		if r, err := http.ReadRequest(in); err == nil {
			rest, _ := io.ReadAll(in)
			if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
				return // reading may have begun with the body
			}
			if !complete || text[all.bytes:] != string(rest) || countFields(r.Header) > all.fields {
				t.Errorf("%q: complete %v after %d of %d bytes, %d fields; net/http leaves %d, and has %d", text, complete, all.bytes, len(text), all.fields, len(rest), countFields(r.Header))
			}
		}
		if cut < 0 || cut > len(text) {
			return
		}
		var pieces scanner
		if !pieces.scan([]byte(text)[:cut]) {
			pieces.scan([]byte(text)[cut:])
		}
		if pieces != all {
			t.Errorf("%q: %v in pieces, %v as a whole", text, pieces, all)
		}
	})
}

// BenchmarkRead is what a head and a body cost that come in one piece.
func BenchmarkRead(b *testing.B) {
	text := []byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 300\r\n" + strings.Repeat("Name: value of a field\r\n", 12) + "\r\n" + strings.Repeat("x", 300))
	g := New(wide, nil)
	c := &conn{guard: g}
	p := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		c.Conn = &reader{from: bytes.NewReader(text)}
		_, _ = c.Read(p)
		c.body = 300
		_, _ = c.Read(p)
	}
}

// reader is a connection that is only read.
type reader struct {
	net.Conn
	from *bytes.Reader
}

func (r *reader) Read(p []byte) (int, error) { return r.from.Read(p) }
