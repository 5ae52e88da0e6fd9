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

// A client reads the words of a JSON-RPC error that comes with a status, and the log does not have them. A 401 may quote
// a credential.
func TestWordsOfAStatus(t *testing.T) {
	for status, want := range map[int]string{
		400: "the server answered with HTTP status 400: over quota",
		401: "the gateway's credentials were refused by the server",
		403: "the gateway's credentials were refused by the server: over quota",
		429: "the server is overloaded: over quota",
		500: "the server answered with HTTP status 500: over quota",
		502: "the server could not be reached: HTTP status 502: over quota",
	} {
		for _, id := range []string{"1", `"server-error"`, "null"} {
			tr := transportTo(t, "", func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-32000,"message":"over quota"}}`)
			})
			_, err := transporttest.Send(t.Context(), tr, transporttest.Message("", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
			se, ok := err.(*transport.StatusError)
			if !ok {
				t.Fatal(err)
			}
			if ue := se.UpstreamError(); ue.TellClient() != want || strings.Contains(ue.Error(), "quota") {
				t.Errorf("id %s: %q; for the log: %v", id, ue.TellClient(), ue)
			}
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
