package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// table is what docs/compatibility.md shows of the rows.
func table(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("| a call of a tool | what the model is shown |")
	for _, a := range agents {
		fmt.Fprintf(&b, " %s %s |", a.title, a.version(t))
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(agents)) + "\n| version of the protocol | |")
	for _, a := range agents {
		fmt.Fprintf(&b, " %s |", a.protocol)
	}
	b.WriteString("\n")
	for _, r := range rows {
		for _, trial := range r.trials {
			fmt.Fprintf(&b, "| %s | %s |", trial.name, trial.want)
			for _, a := range agents {
				cell := "yes"
				if other, ok := trial.but[a.name]; ok {
					cell = "“" + other + "”"
				}
				fmt.Fprintf(&b, " %s |", cell)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// The table in docs/compatibility.md is that of the rows, whose cells TestAgents holds.
func TestTableOfAgents(t *testing.T) {
	file := filepath.Join("..", "..", "docs", "compatibility.md")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- TestAgents writes what follows -->\n", "<!-- TestAgents wrote this -->\n"
	head, rest, ok := strings.Cut(string(old), begin)
	_, tail, there := strings.Cut(rest, end)
	if !ok || !there {
		t.Fatalf("%s has no place for the table", file)
	}
	whole := head + begin + "\n" + table(t) + "\n" + end + tail
	switch {
	case whole == string(old):
	case *update:
		if err := os.WriteFile(file, []byte(whole), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s does not have the table (\"go test ./internal/agents -run TestTableOfAgents -update\" writes it):\n%s", file, table(t))
	}
}
