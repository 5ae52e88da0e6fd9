package streamable

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"taskgate/gateway/upstream/transport"
	"taskgate/gateway/upstream/transporttest"
)

func TestHostPort(t *testing.T) {
	for raw, want := range map[string]string{
		"http://a/mcp":        "a:80",
		"https://a/mcp":       "a:443",
		"https://a:8443/":     "a:8443",
		"http://[::1]/":       "[::1]:80",
		"http://[::1]:3001/x": "[::1]:3001",
		"socks5://p":          "p:1080",
	} {
		u, err := url.Parse(raw)
		transporttest.Must(t, err)
		if got := HostPort(u); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

// A client and the log read the words of a status, whatever form they have. A 401 may quote a credential, so only the
// log has its words, and nobody reads the headers of the request.
func TestWordsOfAStatus(t *testing.T) {
	for status, want := range map[int]string{
		400: "the server answered with HTTP status 400: over quota",
		401: "the server wants its callers to sign in, and the gateway has no credentials for it: auth: {passthrough: {}} has clients sign in there, and headers (--header) has the gateway do so",
		403: "the server refused the request (HTTP status 403): over quota",
		421: "the server answered with HTTP status 421: over quota",
		429: "the server is overloaded: over quota",
		500: "the server answered with HTTP status 500: over quota",
		502: "the server could not be reached: HTTP status 502: over quota",
	} {
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"over quota"}}`,
			`{"jsonrpc":"2.0","id":"server-error","error":{"code":-32000,"message":"over quota"}}`,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"over quota"}}`,
			"over quota", " over\r\n\x1b\u202equota\n", "<html><head><style>a{}</style></head><body><p>over&#32;<b>quota</b></body>",
		} {
			tr := transportTo(t, "", func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body)
			})
			tr.cfg.Header = http.Header{"User-Agent": {"taskgate"}}
			_, err := transporttest.Send(t.Context(), tr, transporttest.Message("", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
			se, ok := err.(*transport.StatusError)
			if !ok {
				t.Fatal(err)
			}
			if ue := se.UpstreamError(); ue.TellClient() != want || !strings.Contains(ue.Error(), "over quota") {
				t.Errorf("%q: %q; for the log: %v", body, ue.TellClient(), ue)
			}
		}
	}
	for name, value := range map[string]string{"Authorization": "Bearer secret-token", "X-Api-Key": "secret-key"} {
		tr := transportTo(t, "", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "not with "+r.Header.Get(name)+", "+strings.TrimPrefix(r.Header.Get(name), "Bearer ")+strings.Repeat(" and so on", 100))
		})
		tr.cfg.Header = http.Header{name: {value}}
		_, err := transporttest.Send(t.Context(), tr, transporttest.Message("", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		ue := err.(*transport.StatusError).UpstreamError()
		if text := ue.TellClient(); !strings.HasPrefix(text, "the gateway's credentials were refused by the server: not with …, …") || strings.Contains(ue.Error(), "secret") || len(text) > 300 {
			t.Errorf("%q; for the log: %v", text, ue)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	// A date is counted from now; nonsense and the past are no time at all.
	now, err := http.ParseTime("Sun, 06 Nov 1994 08:49:37 GMT")
	transporttest.Must(t, err)
	for v, want := range map[string]float64{"7": 7, "0": 0, "-1": 0, "x": 0, "": 0, "Sun, 06 Nov 1994 08:50:37 GMT": 60, "Sun, 06 Nov 1994 08:40:37 GMT": 0} {
		if got := retryAfter(v, now).Seconds(); got != want {
			t.Errorf("%q: %v s, want %v", v, got, want)
		}
	}
}
