package main

import (
	"strings"
	"testing"
)

// The log says where a server is, and no key that its URL holds.
func TestLogShowsNoKey(t *testing.T) {
	r := runServer(t, "http://127.0.0.1:1/mcp?key=open-sesame", nil)
	r.stop()
	r.ends()
	if text := r.log.String(); strings.Contains(text, "open-sesame") || !strings.Contains(text, "from=http://127.0.0.1:1/mcp\n") {
		t.Error(text)
	}
	for raw, want := range map[string]string{
		"https://ann:pw@mcp.test/a%2Fb?key=k#f": "https://mcp.test/a%2Fb",
		"http://[::1]:80/mcp?":                  "http://[::1]:80/mcp",
		"://":                                   "",
	} {
		if got := shown(raw); got != want {
			t.Errorf("shown(%q) = %q, want %q", raw, got, want)
		}
	}
}
