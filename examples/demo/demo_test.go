package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"taskgate/internal/taskclient"
)

func TestLayout(t *testing.T) {
	long := strings.Repeat("x", 90)
	for _, c := range []struct{ name, raw, hide, want string }{
		{"fits", `{"b": 1, "a": [1.0, 2]}`, "", `{"b": 1, "a": [1.0, 2]}`},
		{"broken", `{"a":"` + long + `","b":{"c":1},"d":2}`, "", "{\n  \"a\": \"" + long + "\",\n  \"b\": {\"c\": 1}, \"d\": 2\n}"},
		{"hidden", `{"id":0,"p":{"_meta":{"k":"` + long + `"}}}`, "_meta", `{"id": 0, "p": {"_meta": {...}}}`},
		{"no json", `{"a"`, "", `{"a"`},
	} {
		if got := layout(json.RawMessage(c.raw), "", c.hide); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

func TestTimeline(t *testing.T) {
	var out bytes.Buffer
	line := &timeline{out: &out, begin: time.Now()}
	sent := taskclient.Message{Sent: true, Header: http.Header{}, Body: json.RawMessage(`{"id":1,"params":{"_meta":{"a":"b"}}}`)}
	sent.Header.Set("Mcp-Method", "tools/call")
	line.message(sent)
	line.message(taskclient.Message{Status: 200, Body: json.RawMessage(`{"id":1}`)})
	line.message(sent)
	for _, want := range []string{"0.00s", "client --> gateway  Mcp-Method: tools/call", `{"a": "b"}`, "client <-- gateway  HTTP 200", "{...}"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("colour without a terminal")
	}
}

func TestNoColourInAFile(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if colours(f) != (palette{}) {
		t.Error("colour in a file")
	}
}

func TestCurlScriptNamesTheGateway(t *testing.T) {
	if s := curlScript("http://x/mcp"); !strings.Contains(s, "curl -sS http://x/mcp ") || strings.Contains(s, "GATEWAY") {
		t.Error(s)
	}
}
