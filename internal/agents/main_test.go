package agents

import (
	"flag"
	"os"
	"testing"

	"taskgate/internal/programtest"
)

var (
	all    = flag.Bool("all", false, "run the agents, in all rows but those that take many minutes")
	silent = flag.Bool("silent", false, "run the rows that take many minutes, and no others")
	tries  = flag.Int("tries", 2, "how many tasks of each client meet each fault")
	record = flag.String("record", "", "record Claude Code, and draw that into this file")
	update = flag.Bool("update", false, "write the table of docs/compatibility.md")
)

// bin is where the program under test is.
var bin string

func TestMain(m *testing.M) {
	programtest.AtOnce(6) // they wait most of the time
	os.Exit(programtest.Run(m, &bin, []string{"./cmd/taskgate"}))
}

// The go tool does not know that these files are what is tested, unless a test looks at them.
func TestLooksAtTheSources(t *testing.T) { programtest.LookAtSources(t) }
