package agents

import (
	"fmt"
	"strings"
	"testing"

	"taskgate/internal/programtest"
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
	programtest.TableOf(t, "TestAgents").Compare(t, table(t), *update)
}
