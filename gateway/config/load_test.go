package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskgate/shim"
)

// A minimal file is every default and the one upstream.
func TestParseDefaults(t *testing.T) {
	got := mustParse(t, "upstreams: [{name: research, url: 'http://127.0.0.1:3001/mcp'}]")
	want := Default()
	want.Upstreams = []*Upstream{NewUpstream("research", "http://127.0.0.1:3001/mcp")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Upstreams[0].Path != "/research/mcp" {
		t.Errorf("path %q", got.Upstreams[0].Path)
	}
}

// Variables stand for text, numbers, durations, sizes and words alike, and for
// no more than one value whatever they hold.
func TestParseVariables(t *testing.T) {
	c := mustParse(t, `
key_prefix: t${SEVEN}
heartbeat: ${SEVEN}s
wait_replicas: ${EMPTY:-0}
max_sessions_per_owner: ${SEVEN}
max_body: "${SEVEN}MiB"
log: {level: "${LEVEL:-debug}"}
upstreams:
  - name: "${UNSET:-a}"
    url: http://127.0.0.1:${SEVEN}/$${SEVEN}$$
    headers:
      x-secret: Bearer ${SECRET}
      X-Empty: "${EMPTY}"
      X-Seven: ${SEVEN}
      X-Number: 7
    tools:
      - match: |-
          ${SEVEN}*
        tasks: ${UNSET:-always}
`)
	u := c.Upstreams[0]
	if c.KeyPrefix != "t7" || c.Heartbeat != 7*time.Second || c.MaxSessionsPerOwner != 7 || c.MaxBody != 7*MiB || c.Log.Level != LevelDebug {
		t.Errorf("top level: %+v", c)
	}
	if u.Name != "a" || u.Path != "/a/mcp" || u.URL != "http://127.0.0.1:7/${SEVEN}$" {
		t.Errorf("upstream: %+v", u)
	}
	want := map[string]string{"x-secret": "Bearer " + secret, "X-Empty": "", "X-Seven": "7", "X-Number": "7"}
	if diff := cmp.Diff(want, u.Headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if u.Tool("7th", shim.Hints{}).Tasks != TasksAlways {
		t.Errorf("tools: %+v", u.Tools)
	}
}

// The order of keys in a file means nothing, also where one falls back to
// another, and blocks with all entries commented out count as left out.
func TestParseOrderAndEmptyBlocks(t *testing.T) {
	c := mustParse(t, `
upstreams:
  - tools: [{ttl: 1h, match: a}, {match: b, grace: 0}]
    defaults: {grace: 9s}
    url: http://127.0.0.1:1
    headers:
    name: a
  - name: b
    url: http://127.0.0.1:2
    defaults:
    tools:
log:
baggage:
allowed_hosts:
`)
	if got := c.Upstreams[0].Tool("a", shim.Hints{}).Grace; got != 9*time.Second {
		t.Errorf("grace of a is %s", got)
	}
	if got := c.Upstreams[0].Tool("b", shim.Hints{}).Grace; got != 0 {
		t.Errorf("grace of b is %s", got)
	}
	if !reflect.DeepEqual(c.Upstreams[1].Defaults, DefaultTool()) || c.Log != Default().Log {
		t.Error("an empty block changed a default")
	}
}

func TestParseAnchors(t *testing.T) {
	c := mustParse(t, `
upstreams:
  - name: a
    url: http://127.0.0.1:1
    defaults: &slow {tasks: always, ttl: 3h}
  - name: b
    url: http://127.0.0.1:2
    defaults: *slow
  - name: c
    url: http://127.0.0.1:3
    defaults: {<<: *slow, ttl: 4h}
  - name: d
    url: http://127.0.0.1:4
    defaults: {<<: [{grace: 1s}, &both {<<: *slow, grace: 2s}], ttl: 5h}
`)
	want := DefaultTool()
	want.Tasks, want.TTL = TasksAlways, 3*time.Hour
	if diff := cmp.Diff(want, c.Upstreams[1].Defaults); diff != "" {
		t.Errorf("alias (-want +got):\n%s", diff)
	}
	want.TTL = 4 * time.Hour
	if diff := cmp.Diff(want, c.Upstreams[2].Defaults); diff != "" {
		t.Errorf("merge (-want +got):\n%s", diff)
	}
	want.TTL, want.Grace = 5*time.Hour, time.Second
	if diff := cmp.Diff(want, c.Upstreams[3].Defaults); diff != "" {
		t.Errorf("merges (-want +got):\n%s", diff)
	}
}

// Secrets come from files, found from the directory of the configuration.
func TestLoadSecrets(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"store": "redis://:p@127.0.0.1:6379/2\n",
		"key":   "Bearer x y\r\n\n",
		"config.yaml": `
store: ${file:store}
upstreams:
  - name: a
    url: http://127.0.0.1:1
    headers: {x-plain: p, authorization: "${file:` + filepath.Join(dir, "key") + `}"}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Load(filepath.Join(dir, "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Store != "redis://:p@127.0.0.1:6379/2" {
		t.Errorf("store %q", c.Store)
	}
	want := map[string]string{"authorization": "Bearer x y", "x-plain": "p"}
	if diff := cmp.Diff(want, c.Upstreams[0].Headers); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("a loaded configuration does not validate: %v", err)
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.yaml"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestSecretTooLarge(t *testing.T) {
	name := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(name, make([]byte, maxSecret+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readSecretFile("", name); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("got %v", err)
	}
}

// Files edited elsewhere begin with a byte order mark or end lines with CR LF.
func TestParseForeignText(t *testing.T) {
	_, err := Parse("f", []byte("\ufefflistn: x\r\nupstreams: [{name: a, url: 'http://127.0.0.1:1'}]\r\n"), testEnv)
	want := "f:1:1: unknown key \"listn\" (did you mean \"listen\"?)\n    listn: *\n    ^"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := Parse("f", []byte("listen: \xff\n"), testEnv); err == nil {
		t.Error("bad UTF-8 is accepted")
	}
}

// Circular and multiplying anchors come to an end.
func TestParseHostileAnchors(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 {x: 1}\n")
	for i := 1; i < 60; i++ {
		n, m := strconv.Itoa(i), strconv.Itoa(i-1)
		bomb.WriteString("a" + n + ": &a" + n + " {<<: [*a" + m + ", *a" + m + "]}\n")
	}
	for _, text := range []string{
		"log: &a {<<: *a}\n",
		"upstreams: &a [*a]\n",
		"upstreams: &a [{tools: *a}]\n",
		"<<: &a {<<: [*a, {<<: *a}]}\n",
		bomb.String() + "log: {<<: *a59}\n",
		strings.Repeat("[", 5000),
		"log: " + strings.Repeat("{a: ", 5000),
	} {
		if _, err := Parse("f", []byte(text), testEnv); err == nil {
			t.Errorf("%.40q is accepted", text)
		}
	}
}

// Whatever the bytes, Parse returns a valid configuration or a list of
// mistakes that have a place in the file and show no secret.
func FuzzParse(f *testing.F) {
	f.Add("upstreams: [{name: a, url: 'http://127.0.0.1:1', headers: {A: '${SECRET}'}}]")
	f.Add("log: &a {<<: *a, level: ${SECRET}}\n---\n")
	f.Add("upstreams:\n  -\n  - tools: [{match: '['}]\n    defaults: {ttl: 0}\n")
	seeds, _ := filepath.Glob("testdata/mistakes/*.txtar")
	for _, name := range seeds {
		if data, err := os.ReadFile(name); err == nil {
			f.Add(string(data))
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("testdata/config.yaml", []byte(text), testEnv)
		if err == nil {
			if err := c.Validate(); err != nil {
				t.Errorf("loads but does not validate: %v", err)
			}
			return
		}
		all := eachMistake(t, err)
		if len(all) == 0 || c != nil {
			t.Fatalf("returned %v, %T", c, err)
		}
		for _, e := range all {
			if e.Line < 1 || e.Column < 1 || e.Message == "" {
				t.Errorf("no place or message: %+v", e)
			}
		}
		if strings.Contains(err.Error(), secret) && !strings.Contains(text, secret) {
			t.Errorf("shows a secret: %v", err)
		}
	})
}
