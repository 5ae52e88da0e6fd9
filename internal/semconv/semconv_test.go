package semconv

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSpanName(t *testing.T) {
	for _, c := range []struct{ method, name, want string }{
		{"tools/call", "get_time", "tools/call get_time"},
		{"prompts/get", "p", "prompts/get p"},
		{"resources/read", "file:///secret", "resources/read"},
		{"tools/list", "", "tools/list"},
	} {
		if got := SpanName(c.method, c.name); got != c.want {
			t.Errorf("SpanName(%q, %q) = %q, want %q", c.method, c.name, got, c.want)
		}
	}
}

// A name that a client wrote is cut, wherever spans show it.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	for _, method := range []string{"tools/call", "prompts/get", "resources/read"} {
		shown := []string{SpanName(method, long)}
		for _, kv := range AppendTarget(nil, method, long) {
			shown = append(shown, kv.Value.AsString())
		}
		for _, text := range shown {
			if len(text) > 300 || !utf8.ValidString(text) {
				t.Errorf("%s shows %d bytes", method, len(text))
			}
		}
	}
}

func TestAppendTarget(t *testing.T) {
	got := AppendTarget(nil, "tools/call", "x")
	if len(got) != 2 || got[0] != GenAITool.String("x") || got[1] != GenAIOperation.String("execute_tool") {
		t.Errorf("Target of a tool: %v", got)
	}
}
