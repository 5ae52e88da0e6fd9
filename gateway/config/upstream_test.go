package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"taskgate/shim"
)

func TestToolFirstMatchWins(t *testing.T) {
	c := mustParse(t, `
upstreams:
  - name: a
    url: http://127.0.0.1:1
    tools:
      - {match: "deep_*", tasks: always, ttl: 2h}
      - {match: "*_[a-c]?", tasks: never}
      - {match: "[^x]?z", tasks: never}
      - {match: "lit\\*", tasks: required}
      - {match: "ns/*", recover: retry}
    defaults: {grace: 3s, ttl: 30m}
`)
	u := c.Upstreams[0]
	fallback := DefaultTool()
	fallback.Grace, fallback.TTL = 3*time.Second, 30*time.Minute
	for _, tt := range []struct {
		tool string
		edit func(*Tool)
	}{
		{"deep_", func(p *Tool) { p.Tasks, p.TTL = TasksAlways, 2*time.Hour }},
		{"deep_a1", func(p *Tool) { p.Tasks, p.TTL = TasksAlways, 2*time.Hour }},
		{"deep_a/b/c", func(p *Tool) { p.Tasks, p.TTL = TasksAlways, 2*time.Hour }},
		{"a/z", func(p *Tool) { p.Tasks = TasksNever }},
		{"lit*", func(p *Tool) { p.Tasks = TasksRequired }},
		{"lit/", func(*Tool) {}},
		{"ns/x/y", func(p *Tool) { p.Recover = RecoverRetry }},
		{"nsx", func(*Tool) {}},
		{"Deep_", func(*Tool) {}},
		{"", func(*Tool) {}},
	} {
		want := fallback
		tt.edit(&want)
		if diff := cmp.Diff(want, u.Tool(tt.tool, shim.Hints{})); diff != "" {
			t.Errorf("policy of %q (-want +got):\n%s", tt.tool, diff)
		}
	}
}

// The policy is looked up for every request.
func TestToolDoesNotAllocate(t *testing.T) {
	u := NewUpstream("a", "http://127.0.0.1:1")
	for i := range 20 {
		u.Tools = append(u.Tools, Rule{Match: ByName(fmt.Sprintf("tool_%d_*", i)), Tool: u.Defaults})
	}
	if n := testing.AllocsPerRun(100, func() { u.Tool("deep_research", shim.Hints{}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		earlier, later string
		want           bool
	}{
		{"*", "anything", true},
		{"*", "*", true},
		{"*", "a?", true},
		{"a*", "ab*", true},
		{"a*", "ab[c]", true},
		{"a", "a", true},
		{"a?", "ab", true},
		{"a?", "abc", false},
		{"ab*", "a*", false},
		{"a", "b", false},
		{"a?", "a*", false},
		{"a/*", "a/b/c", true},
		{`\*`, "*", false},
		{`\*`, "x", false},
		{`\**`, `\*a`, false}, // true, but not worth knowing
	} {
		if got := globCovers(tt.earlier, tt.later); got != tt.want {
			t.Errorf("covers(%q, %q) = %v", tt.earlier, tt.later, got)
		}
	}
}

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("config.yaml", []byte(text), testEnv)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The warnings say for whom repeat does nothing, and only where that follows from other keys.
func TestRepeatWarnings(t *testing.T) {
	const (
		network = "allowed_hosts: [mcp.example.com]\n"
		owners  = "auth: {keys: [\"alice:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90\"]}\n"
	)
	for _, tt := range []struct {
		top, upstream string
		want          []string // how each warning begins, after the name of the upstream
	}{
		{"", "", nil},
		{network + owners, "", nil},
		{network, "", []string{": repeat does nothing for clients of 2026-07-28"}},
		{network, "defaults: {repeat: run}", nil},
		{"", "forward_headers: [X-Tenant, x-request-id]", []string{": repeat does nothing for clients that send x-request-id"}},
		{"", "tools: [{match: quick, timeout: 5s}]", nil}, // none of its calls is slow, and nobody asked for more
		{"", "tools: [{match: quick, timeout: 5s, repeat: join}]", []string{", tools quick: repeat: join does nothing: timeout 5s"}},
		{"", "without_tasks: handle, without_tasks_after: 10s, defaults: {repeat: join}, tools: [{match: never, tasks: never}]",
			[]string{": repeat: join does nothing for clients without tasks: without_tasks_after 10s"}},
	} {
		c := mustParse(t, tt.top+"upstreams: [{name: a, url: \"http://127.0.0.1:1\", "+tt.upstream+"}]\n")
		got := c.Warnings()
		if len(got) != len(tt.want) {
			t.Errorf("%s%s: %q, want %q", tt.top, tt.upstream, got, tt.want)
			continue
		}
		for i, want := range tt.want {
			if !strings.HasPrefix(got[i], "upstream a"+want) {
				t.Errorf("%s%s: %q, want %q", tt.top, tt.upstream, got[i], want)
			}
		}
	}
}

// A match by annotations goes by what the server says of a tool. The rights go by names alone: no word of the server
// changes who may call.
func TestMatchByAnnotations(t *testing.T) {
	c := mustParse(t, `
auth: {keys: ["alice:0000000000000000000000000000000000000000000000000000000000000001"]}
upstreams:
  - name: a
    url: http://127.0.0.1:1
    tools:
      - {match: {name: "get_*", read_only: true}, ttl: 1h}
      - {match: {idempotent: true, destructive: false}, ttl: 2h}
      - {match: {open_world: false}, ttl: 3h}
      - {match: {name: "del_*", destructive: true}, ttl: 4h}
      - {match: "secret_*", ttl: 5h, principals: [alice]}
`)
	u := c.Upstreams[0]
	for _, tt := range []struct {
		tool  string
		says  shim.Hints
		hours time.Duration
	}{
		{"get_a", shim.Hints{ReadOnly: true, Additive: true, Idempotent: true}, 1},
		{"get_a", shim.Hints{}, 24},
		{"put_a", shim.Hints{Additive: true, Idempotent: true}, 2},
		{"put_a", shim.Hints{Idempotent: true}, 24},
		{"put_a", shim.Hints{Closed: true}, 3},
		{"del_a", shim.Hints{}, 4},
		{"del_a", shim.Hints{Additive: true}, 24},
		{"secret_a", shim.Hints{}, 5},
		{"secret_a", shim.Hints{Closed: true}, 3},
	} {
		if got := u.Tool(tt.tool, tt.says).TTL; got != tt.hours*time.Hour {
			t.Errorf("the ttl of %s, of which the server says %+v, is %v", tt.tool, tt.says, got)
		}
		if restricted := len(u.RightsOf(tt.tool).Principals) > 0; restricted != (tt.tool == "secret_a") {
			t.Errorf("%s is restricted: %v", tt.tool, restricted)
		}
	}
	if got := u.Tools[0].Match.String(); got != "name: get_*, read_only: true" {
		t.Errorf("shown as %q", got)
	}
}
