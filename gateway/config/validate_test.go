package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFromFlags(t *testing.T) {
	c := FromFlags("http://127.0.0.1:3001/mcp")
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(c.Upstreams) != 1 || c.Upstreams[0].Name != "mcp" || c.Upstreams[0].Path != "/mcp" {
		t.Errorf("upstreams: %+v", c.Upstreams[0])
	}
	if err := FromFlags("").Validate(); err == nil || err.Error() != "upstreams[0].url: url or command is required" {
		t.Errorf("without a URL: %v", err)
	}
}

// Configurations made by hand are checked in full too; their mistakes name
// keys.
func TestValidateByHand(t *testing.T) {
	c := FromFlags("http://127.0.0.1:1")
	c.Heartbeat = 0
	c.MaxBody = 2 * GiB
	c.Log.Format = "xml"
	u := c.Upstreams[0]
	u.Era = ""
	u.Headers = map[string]string{"Mcp-Name": "x"}
	u.Defaults.TTL = -1
	u.Tools = []Rule{{Match: ByName("a"), Tool: Tool{}}}

	all := eachMistake(t, c.Validate())
	var got []string
	for _, e := range all {
		got = append(got, e.Path)
	}
	want := []string{
		"heartbeat", "log.format", "max_body", "upstreams[0].era", "upstreams[0].headers.Mcp-Name",
		"upstreams[0].defaults.ttl", "upstreams[0].tools[0].tasks", "upstreams[0].tools[0].ttl",
		"upstreams[0].tools[0].poll_interval", "upstreams[0].tools[0].timeout",
		"upstreams[0].tools[0].progress",
		"upstreams[0].tools[0].recover",
		"upstreams[0].tools[0].rerun",
		"upstreams[0].tools[0].early_input", "upstreams[0].tools[0].input_timeout",
		"upstreams[0].tools[0].repeat", "upstreams[0].tools[0].linger", "upstreams[0].tools[0].missing_rights",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	if first := all[0]; first.Error() != "heartbeat: must be at least 100ms" {
		t.Errorf("first mistake: %v", first)
	}
}

func TestValidateStore(t *testing.T) {
	for store, want := range map[string]string{
		"embedded":                                 "",
		"file":                                     "",
		"file:/var/lib/taskgate":                   "",
		"redis://127.0.0.1":                        "",
		"redis://127.0.0.1:6379":                   "",
		"redis://[::1]:6379/0":                     "",
		"redis://user:p%40ss%2Fword@host:6379/0":   "",
		"redis://:p@host/":                         "",
		"redis://host/15?read_timeout=3s":          "",
		"rediss://host:6379/":                      "",
		"redis+cluster://h1:6379,h2:6379":          "",
		"redis+cluster://u:p@h1:6379,h2":           "",
		"redis+sentinel://h1:1,h2:2/mymaster":      "",
		"redis+sentinel://:p@h1:1,h2:2/mymaster/3": "",

		"rediss+cluster://h1,h2/": "",
		"rediss+sentinel://h1/m":  "",

		"":                         "not a store",
		"redis+tls://h":            "not a store",
		"redisss://h":              "not a store",
		"redis://u:p@s:s/w@h":      "special characters",
		"redis://u:p#w@h":          "special characters",
		"redis://u:p w@h":          "special characters",
		"redis://h:0":              "a host",
		"redis://h:65536":          "a host",
		"redis+cluster://h1,h2/0":  "no database",
		"EMBEDDED":                 "not a store",
		"file:":                    "the path of a folder",
		"redis:host":               "not a store",
		"http://host":              "not a store",
		"redis://":                 "a host",
		"redis://:6379":            "a host",
		"redis://h1,h2":            "takes one host",
		"redis://h:port":           "a host",
		"redis+cluster://h1,,h2":   "a host",
		"redis://h/db":             "database number",
		"redis://h/0/1":            "database number",
		"redis://h/-1":             "database number",
		"redis+sentinel://h1,h2":   "names the master",
		"redis+sentinel://h1//0":   "names the master",
		"redis+sentinel://h1/m/db": "database number",
	} {
		c := FromFlags("http://127.0.0.1:1")
		c.Store = store
		err := c.Validate()
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", store, err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), "store: ") || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: got %v, want %q", store, err, want)
		}
	}
}

func TestValidateAddressesAndOrigins(t *testing.T) {
	c := FromFlags("https://example.com:8443/mcp?x=y")
	c.AllowedOrigins = []string{
		"https://app.example.com", "http://localhost:3000", "http://[::1]:6274",
		"vscode-webview://0123abc", "https://x:80", "http://x:443",
	}
	c.AllowedHosts = []string{"gateway.internal", "10.0.0.1", "fe80::1"}
	c.Baggage = []string{"tenant", "user.id"}
	for _, listen := range []string{":0", ":8080", "0.0.0.0:80", "[::]:65535", "localhost:1"} {
		c.Listen = listen
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
	for _, listen := range []string{"", "8080", "localhost", "a:http", "a:65536", "::1:80", "a:-1"} {
		c.Listen = listen
		if err := c.Validate(); err == nil {
			t.Errorf("listen %q is accepted", listen)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"grace", "ttl", "max_ttl", "poll_interval", "tasks"}
	for word, want := range map[string]string{
		"grase": "grace", "garce": "grace", "Grace": "grace", "graces": "grace", "grce": "grace",
		"tll": "ttl", "maxTTL": "max_ttl", "max-ttl": "max_ttl", "pollInterval": "poll_interval",
		"task": "tasks", "": "", "x": "", "completely": "", "recover": "",
	} {
		if got := nearestWord(word, known); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
