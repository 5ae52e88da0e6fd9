package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"taskgate/gateway/config"
)

// What a client wrote is cut in the log, also in the text of an error.
func TestLogCutsLongTexts(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	for _, format := range []config.LogFormat{config.FormatText, config.FormatJSON} {
		var out bytes.Buffer
		log := newLogger(config.Log{Level: config.LevelInfo, Format: format}, &out)
		log.With("upstream", long).Warn("request failed", "tool", long, "error", errors.New(long), "n", 7, "short", "whole")
		if n := out.Len(); n < 3*maxAttr || n > 4*maxAttr || !strings.Contains(out.String(), "whole") || !strings.Contains(out.String(), "7") {
			t.Errorf("%s: a line of %d bytes", format, n)
		}
	}
}

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
		if got := shownURL(raw); got != want {
			t.Errorf("shown(%q) = %q, want %q", raw, got, want)
		}
	}
}
