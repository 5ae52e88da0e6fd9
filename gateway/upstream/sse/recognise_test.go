package sse

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"taskgate/gateway/upstream/transporttest"
	"testing"
	"time"

	"taskgate/shim"
)

// status answers with a status and a text.
func status(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
}

// stream answers with an event stream that ends.
func stream(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, text)
	}
}

// TestRecognition: which answers to an initialize are followed by a GET, and what comes of it.
func TestRecognition(t *testing.T) {
	const rpc = `{"jsonrpc":"2.0","id":"h","error":{"code":-32600,"message":"no"}}`
	for _, c := range []struct {
		name      string
		post, get http.HandlerFunc
		status    int
		gets      int
	}{
		{"newer", status(200, "{}"), nil, 200, 0},
		{"refused in words of MCP", status(400, rpc), nil, 400, 0},
		{"refused in words of MCP to nobody", status(400, `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"no"}}`), nil, 400, 0},
		{"no credentials", status(401, ""), nil, 401, 0},
		{"in trouble", status(503, ""), nil, 503, 0},
		{"elsewhere", status(307, ""), nil, 307, 0},
		{"the method in words of MCP", status(405, rpc), status(404, ""), 405, 1}, // fast-mcp, but for the GET
		{"nothing there", status(404, "x"), status(404, ""), 404, 1},
		{"GET refused", status(405, "x"), status(401, ""), 405, 1},
		{"another stream", status(400, "x"), stream("data: {}\n\n"), 400, 1},
		{"an empty stream", status(405, "x"), stream(""), 405, 1},
		{"a page", status(405, "x"), status(200, "<html>"), 405, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			gets := 0
			s.becomes(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					gets++
					c.get(w, r)
					return
				}
				c.post(w, r)
			})
			cl := s.client(Config{})
			_, err := cl.post("", hello)
			wantStatus(t, err, c.status)
			if gets != c.gets || cl.Speaks() {
				t.Errorf("%d GET requests, and the server counts as one of HTTP+SSE: %t", gets, cl.Speaks())
			}
		})
	}
	for _, code := range []int{400, 404, 405} {
		s := newServer(t)
		cl := s.client(Config{})
		s.becomes(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && r.URL.Path == "/sse" {
				w.WriteHeader(code)
				return
			}
			s.becomes(nil)
			s.ServeHTTP(w, r)
		})
		cl.begin()
		if !cl.Speaks() {
			t.Errorf("status %d: not recognised", code)
		}
	}
}

// What was found out is remembered: the next session is opened by a GET at once, and what is not
// of a session goes to the server as it is.
func TestRemembered(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{})
	cl.begin()
	if got := s.requests(); !slices.Equal(got, []string{"POST /sse", "GET /sse", "POST /messages"}) {
		t.Errorf("requests %q", got)
	}
	cl.begin()
	if got := s.requests(); !slices.Equal(got, []string{"GET /sse", "POST /messages"}) {
		t.Errorf("requests %q", got)
	}
	_, err := cl.post("", ask)
	wantStatus(t, err, 405)
	always := s.client(Config{Always: true})
	s.requests()
	always.begin()
	if got := s.requests(); !slices.Equal(got, []string{"GET /sse", "POST /messages"}) {
		t.Errorf("requests %q", got)
	}
}

// A server that is replaced by one of Streamable HTTP is found out with the next session, and
// so is the opposite. One in trouble stays what it was.
func TestServerChanges(t *testing.T) {
	s := newServer(t)
	cl := s.client(Config{})
	cl.begin()
	for name, get := range map[string]http.HandlerFunc{
		"405": status(405, ""), "400": status(400, ""), "page": status(200, "x"), "stream": stream("data: {}\n\n"), "empty stream": stream(""),
	} {
		s.becomes(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				get(w, r)
				return
			}
			if b, _ := io.ReadAll(r.Body); string(b) != hello {
				t.Errorf("%s: the server got %q", name, b)
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":"h","result":{}}`)
		})
		if _, err := cl.text("", hello); err != nil || cl.Speaks() {
			t.Errorf("%s: %v", name, err)
		}
		s.becomes(nil)
		cl.begin()
	}
	s.becomes(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			stream("")(w, r)
			return
		}
		w.WriteHeader(405)
	})
	_, err := cl.post("", hello)
	wantError(t, err, "protocol", "ended before it named an endpoint")
	s.becomes(nil)
	cl.begin()
	s.becomes(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"GET": 200, "POST": 405}[r.Method])
	})
	_, err = cl.post("", hello)
	wantStatus(t, err, 405)
	s.becomes(nil)
	cl.begin()
	for _, code := range []int{401, 429, 500, 503, 302} {
		s.becomes(status(code, ""))
		_, err := cl.post("", hello)
		if wantStatus(t, err, code); !cl.Speaks() {
			t.Errorf("status %d: the server counts as one of Streamable HTTP", code)
		}
		s.becomes(nil)
		cl.begin()
	}
}

// wantError wants an error of a kind that says some text, of something that was not sent.
func wantError(t *testing.T, err error, kind, text string) {
	t.Helper()
	ue, ok := errors.AsType[*shim.UpstreamError](err)
	if !ok || ue.Kind != kind || !ue.Unsent || !strings.Contains(ue.Message, text) {
		t.Errorf("error %v, want %s: …%s…, unsent", err, kind, text)
	}
}

// TestEndpoint: messages are posted to the same origin only, however the endpoint is named.
func TestEndpoint(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s reached another origin", r.Method, r.URL)
	}))
	defer other.Close()
	s := newServer(t)
	_, port, _ := strings.Cut(s.URL, "127.0.0.1:")
	for _, at := range []string{
		"/messages", "messages?s=1", "./messages#x", s.URL + "/messages", "HTTP://127.0.0.1:" + port + "/messages",
		"//127.0.0.1:" + port + "/messages", "http://somebody:else@127.0.0.1:" + port + "/messages", "  /messages\t",
	} {
		s.begins("event: endpoint\ndata: " + at + "\n\n")
		cl := s.client(Config{})
		if _, err := cl.text(cl.begin(), ask); err != nil {
			t.Errorf("%q: %v", at, err)
		}
	}
	for _, at := range []string{
		other.URL + "/messages", "//" + strings.TrimPrefix(other.URL, "http://") + "/x", "https://127.0.0.1:" + port + "/messages",
		"http://localhost:" + port + "/messages", "http://127.0.0.1/messages", "ftp://127.0.0.1:" + port, "javascript:alert(1)",
	} {
		s.begins("event: endpoint\ndata: " + at + "\n\n")
		for _, always := range []bool{true, false} {
			_, err := s.client(Config{Always: always}).post("", hello)
			wantError(t, err, "protocol", "another origin")
		}
	}
	for _, at := range []string{"", "http://[::1", "%zz"} {
		s.begins("event: endpoint\ndata: " + at + "\n\n")
		_, err := s.client(Config{Always: true}).post("", hello)
		wantError(t, err, "protocol", "no URL")
	}
}

// A stream that does not begin as it must is given up: at once, or when it has had its time. The
// next attempt has to wait then.
func TestBadBeginnings(t *testing.T) {
	for first, want := range map[string][2]string{
		"":                                  {"timeout", "did not begin within 50ms"},
		": ping\n\n":                        {"timeout", "did not begin within 50ms"},
		"event: endpoint\ndata: /x":         {"timeout", "did not begin within 50ms"},
		"data: {}\n\n":                      {"timeout", "did not begin within 50ms"},
		"event: hello\ndata: /messages\n\n": {"timeout", "did not begin within 50ms"},
	} {
		s := newServer(t)
		s.begins(first)
		cl := s.client(Config{Always: true, Patience: 50 * time.Millisecond})
		_, err := cl.post("", hello)
		wantError(t, err, want[0], "the event stream of the server "+want[1])
		_, err = cl.post("", hello)
		wantError(t, err, "unreachable", want[1]+" (the next attempt can be made in 100ms)")
	}
	s := newServer(t)
	s.begins(strings.Repeat("x", 2<<10))
	_, err := s.client(Config{Always: true, MaxEvent: 1 << 10}).post("", hello)
	wantError(t, err, "protocol", "before it named an endpoint")
	cl := s.client(Config{Always: true})
	s.becomes(status(200, "<html>"))
	_, err = cl.post("", hello)
	if se := wantStatus(t, err, 200); !strings.Contains(se.Reason, "no event stream") {
		t.Errorf("the reason is %q", se.Reason)
	}
	s.becomes(status(403, "no"))
	_, err = cl.post("", hello)
	wantStatus(t, err, 403)
	s.Server.Close()
	if _, err := cl.post("", hello); err == nil {
		t.Error("no error of a server that is not there")
	}
}

// Events before the endpoint are skipped: EventSource, which the clients use, waits for the one that it wants.
func TestEventsBeforeTheEndpoint(t *testing.T) {
	for _, always := range []bool{true, false} {
		s := newServer(t)
		s.begins("event: ping\ndata: 1\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n: comment\n\nevent: endpoint\ndata: /messages\n\n")
		cl := s.client(Config{Always: always})
		if _, err := cl.text(cl.begin(), ask); err != nil {
			t.Errorf("always %v: %v", always, err)
		}
	}
}

// Behind a path prefix the server names an address that is not there: the configured one takes its place, with the
// query that the server wants.
func TestConfiguredEndpoint(t *testing.T) {
	s := newServer(t)
	s.begins("event: endpoint\ndata: http://inside.invalid/prefix/nowhere?sid=7\n\n")
	at, err := url.Parse(s.URL + "/messages")
	transporttest.Must(t, err)
	cl := s.client(Config{Always: true, Endpoint: at})
	cl.begin()
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.seen[len(s.seen)-1].URL.String(); last != "/messages?sid=7" {
		t.Errorf("posted to %s", last)
	}
}
