package streamable

import (
	"net/http"
	"net/url"
	"testing"
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
		if err != nil {
			t.Fatal(err)
		}
		if got := HostPort(u); got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	// A date is counted from now; nonsense and the past are no time at all.
	now, err := http.ParseTime("Sun, 06 Nov 1994 08:49:37 GMT")
	if err != nil {
		t.Fatal(err)
	}
	for v, want := range map[string]float64{"7": 7, "0": 0, "-1": 0, "x": 0, "": 0, "Sun, 06 Nov 1994 08:50:37 GMT": 60, "Sun, 06 Nov 1994 08:40:37 GMT": 0} {
		if got := retryAfter(v, now).Seconds(); got != want {
			t.Errorf("%q: %v s, want %v", v, got, want)
		}
	}
}
