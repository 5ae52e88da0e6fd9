package config

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
		if diff := cmp.Diff(want, u.Tool(tt.tool)); diff != "" {
			t.Errorf("policy of %q (-want +got):\n%s", tt.tool, diff)
		}
	}
}

// The policy is looked up for every request.
func TestToolDoesNotAllocate(t *testing.T) {
	u := NewUpstream("a", "http://127.0.0.1:1")
	for i := range 20 {
		u.Tools = append(u.Tools, Rule{Match: fmt.Sprintf("tool_%d_*", i), Tool: u.Defaults})
	}
	if n := testing.AllocsPerRun(100, func() { u.Tool("deep_research") }); n > 0 {
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
