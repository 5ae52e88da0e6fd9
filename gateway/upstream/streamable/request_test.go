package streamable

import (
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"taskgate/gateway/upstream/transporttest"
	"taskgate/internal/jsonrpc"
)

// transportTo returns a transport to a server at a path, which ends with the test.
func transportTo(t *testing.T, path string, server http.HandlerFunc) *Transport {
	t.Helper()
	web := httptest.NewServer(server)
	u, err := url.Parse(web.URL + path)
	transporttest.Must(t, err)
	tr := New(Config{URL: u, MaxResult: 1 << 20, Header: http.Header{"X-Key": {"k"}}})
	t.Cleanup(func() {
		_ = tr.Close(context.Background())
		web.Close()
	})
	return tr
}

// Where the server closes a connection just when it is used again, a notification or a handshake goes out on
// another one. A request that may have run does not.
func TestClosedConnection(t *testing.T) {
	const (
		notification = `{"jsonrpc":"2.0","method":"notifications/x"}`
		request      = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`
	)
	for _, c := range []struct {
		name, body string
		posts      int64
		fails      bool
	}{{"notification", notification, 3, false}, {"response", `{"jsonrpc":"2.0","id":1,"result":{}}`, 3, false}, {"request", request, 2, true}, {"handshake", `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, 3, true}} {
		t.Run(c.name, func(t *testing.T) {
			var posts atomic.Int64
			tr := transportTo(t, "", func(w http.ResponseWriter, r *http.Request) {
				if _, there := r.Header["Idempotency-Key"]; there {
					t.Error("the key was written")
				}
				if posts.Add(1) == 2 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(http.StatusAccepted)
			})
			if _, err := transporttest.Send(t.Context(), tr, transporttest.Message("", notification)); err != nil {
				t.Fatal(err)
			}
			if _, err := transporttest.Send(t.Context(), tr, transporttest.Message("", c.body)); (err != nil) != c.fails || posts.Load() != c.posts {
				t.Errorf("%d posts, %v", posts.Load(), err)
			}
		})
	}
}

// A redirect to another path of the origin is followed once, with all that the request has: Starlette adds a slash so
// (python-sdk #732). Nothing goes to another origin.
func TestRedirects(t *testing.T) {
	const request = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`
	for _, c := range []struct {
		path, to string
		status   int
		follows  bool
	}{
		{"/mcp", "http://{host}/mcp/", 307, true},
		{"/mcp/", "/mcp", 308, true},
		{"/mcp?a=b", "/mcp/?a=b", 307, true},
		{"/a%2Fb", "/a%2Fb/", 307, true},
		{"/mcp", "/mcp/", 302, false}, // clients would go on with a GET
		{"/mcp", "/mcp", 307, false},
		{"/mcp", "/other/?c=d", 307, true},
		{"/mcp?a=b", "https://{host}/mcp/?a=b", 307, true}, // the server is behind a proxy that has TLS
		{"/mcp", "http://elsewhere.invalid/mcp/", 307, false},
		{"/mcp", "", 307, false},
	} {
		t.Run(c.path+" to "+c.to, func(t *testing.T) {
			var asked []string
			tr := transportTo(t, c.path, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				asked = append(asked, r.Method+" "+r.RequestURI+" "+r.Header.Get("X-Key")+" "+string(body))
				if len(asked) == 1 {
					w.Header().Set("Location", strings.ReplaceAll(c.to, "{host}", r.Host))
					w.WriteHeader(c.status)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			})
			_, err := transporttest.Send(t.Context(), tr, transporttest.Message("", request))
			want := []string{"POST " + c.path + " k " + request}
			if c.follows {
				want = append(want, "POST "+strings.TrimPrefix(strings.TrimPrefix(c.to, "http://{host}"), "https://{host}")+" k "+request)
			}
			if (err == nil) != c.follows || !slices.Equal(asked, want) {
				t.Errorf("asked %q, %v; want %q", asked, err, want)
			}
		})
	}
}

// A server is asked not to compress: a client that says nothing takes any coding (RFC 9110 12.5.3), and proxies make
// use of that (openai/codex #37228).
func TestNothingIsCompressed(t *testing.T) {
	tr := transportTo(t, "", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("Accept-Encoding") != "identity" {
			w.Header().Set("Content-Encoding", "br")
		}
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	m := transporttest.Message("", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		resp, err := tr.performMessage(t.Context(), method, m)
		transporttest.Must(t, err)
		resp.Body.Close()
		if coding := resp.Header.Get("Content-Encoding"); coding != "" {
			t.Errorf("the answer to %s is compressed: %s", method, coding)
		}
	}
}

// A body that is compressed all the same is read, piece by piece and within the limits. Codings that clients of HTTP need
// not know are named.
func TestCompressedAnswers(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":1,"result":{"text":"%s"}}`
	long := fmt.Sprintf(answer, strings.Repeat("x", 2<<20))
	for name, c := range map[string]struct {
		status             int
		coding, kind, body string
		fails              string
	}{
		"JSON":      {200, "gzip", "application/json", fmt.Sprintf(answer, "ok"), ""},
		"stream":    {200, "gzip", "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n", ""},
		"status":    {400, "gzip", "application/json", `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"bad"}}`, "JSON-RPC error -32602"},
		"too large": {200, "gzip", "application/json", long, "larger than"},
		"not gzip":  {200, "gzip", "application/json", "", "invalid header"},
		"deflate":   {200, "deflate", "application/json", fmt.Sprintf(answer, "ok"), ""},
		"bare":      {200, "Deflate", "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n", ""},
		"bomb":      {200, "deflate", "application/json", long, "larger than"},
		"br":        {200, "br", "application/json", "...", "the answer is compressed"},
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			tr := transportTo(t, "", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.kind)
				w.Header().Set("Content-Encoding", c.coding)
				w.WriteHeader(c.status)
				if c.coding == "br" || c.body == "" {
					_, _ = io.WriteString(w, strings.Repeat("no gzip ", 9))
					return
				}
				zip := interface {
					io.WriteCloser
					Flush() error
				}(gzip.NewWriter(w))
				switch c.coding {
				case "deflate":
					zip = zlib.NewWriter(w)
				case "Deflate": // as some servers understand the word
					zip, _ = flate.NewWriter(w, flate.DefaultCompression)
				}
				_, _ = io.WriteString(zip, c.body)
				if c.kind == "text/event-stream" { // its first event comes before its end
					_ = zip.Flush()
					_ = http.NewResponseController(w).Flush()
					<-hold
				}
				_ = zip.Close()
			})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			in, err := transporttest.Send(ctx, tr, transporttest.Message("", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
			if err == nil {
				defer in.Close()
				_, err = transporttest.Read(in)
			}
			close(hold)
			if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%v, want %q", err, c.fails)
			}
		})
	}
}

// A session has the cookies that came with it, beside those of the configuration, and only a session has any.
func TestCookies(t *testing.T) {
	for name, c := range map[string]struct {
		set           []string
		session, want string
	}{
		"of a balancer":    {[]string{"AWSALB=a/b+c=; Expires=Fri, 04 Dec 2099 10:00:00 GMT; Path=/", `q="x y"; Max-Age=9; HttpOnly`}, "s", `own=1; AWSALB=a/b+c=; q="x y"`},
		"removed":          {[]string{"node=b; Max-Age=0"}, "s", "own=1"},
		"set anew":         {[]string{"node=a", "node=; Expires=Thu, 01 Jan 1970 00:00:00 GMT", "node=b"}, "s", "own=1; node=b"},
		"too large":        {[]string{"node=" + strings.Repeat("x", maxCookie)}, "s", "own=1"},
		"without sessions": {[]string{"node=b"}, "", "own=1"},
		"none":             {nil, "s", "own=1"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			tr := transportTo(t, "", func(w http.ResponseWriter, r *http.Request) {
				got = strings.Join(r.Header["Cookie"], " and ")
				if c.session != "" {
					w.Header().Set("Mcp-Session-Id", c.session)
				}
				w.Header()["Set-Cookie"] = c.set
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			})
			tr.cfg.Header.Set("Cookie", "own=1")
			m := transporttest.Message("", `{"jsonrpc":"2.0","id":1,"method":"initialize"}`)
			in, err := tr.Request(t.Context(), m)
			transporttest.Must(t, err)
			next := transporttest.Message(c.session, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
			next.Cookie = in.Head().Cookie
			if _, err := transporttest.Send(t.Context(), tr, next); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("the server got %q, want %q", got, c.want)
			}
		})
	}
}

// An answer is read whatever success its status says, and whatever follows its content type.
func TestAnswersOfAnySuccess(t *testing.T) {
	const answer, notice = `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/x"}`
	for _, c := range []struct {
		status     int
		kind, body string
		fails      bool
	}{
		{200, "application/json; charset", answer, false},
		{201, "application/json", answer, false},
		{201, "text/event-stream", "data: " + answer + "\n\n", false},
		{200, "application/json", " [" + answer + "]\n", false}, // as servers of Effect answer
		{200, "application/json", "[" + answer + "," + answer + "]", false},
		{200, "application/json", "[ " + notice + " , " + answer + "]", false}, // as those of the PHP SDK
		{200, "application/json", "[" + notice + ",7," + answer + "]", true},
		{200, "application/json", "[" + notice + "]", true},
		{200, "application/json", "[" + strings.Repeat(notice+",", maxMessages) + answer + "]", true},
		{200, "application/json", "\uFEFF" + answer, false}, // as files of PHP begin
		{200, "application/json", "\uFEFF[" + notice + "," + answer + "]", false},
		{200, "application/json", "[]", true},
		{200, "application/json", "{}", true},
		{200, "text/event-stream", "data: {\"type\":\"heartbeat\"}\n\ndata: " + answer + "\n\n", false},
		{200, "text/event-stream", "data: Server started!\n\ndata: " + answer + "\n\n", false},
		{200, "text/event-stream", "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":NaN}}\n\ndata: " + answer + "\n\n", false},
		{202, "application/json", answer, true},
		{200, "text/html", answer, true},
	} {
		tr := transportTo(t, "", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.kind)
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		var got jsonrpc.Message
		in, err := transporttest.Send(t.Context(), tr, transporttest.Message("", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		for err == nil && got.Kind != jsonrpc.Result {
			got, err = transporttest.Read(in)
		}
		if in != nil {
			in.Close()
		}
		if (err != nil) != c.fails || err == nil && string(got.Raw) != answer {
			t.Errorf("%d %s %s: %s, %v", c.status, c.kind, c.body, got.Raw, err)
		}
	}
}
