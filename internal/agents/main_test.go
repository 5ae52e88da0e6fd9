package agents

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"taskgate/internal/programtest"
)

var (
	all    = flag.Bool("all", false, "run the agents, in all rows but the silent ones")
	silent = flag.Bool("silent", false, "run the rows in which a tool is silent for 10 minutes, and no others")
	tries  = flag.Int("tries", 2, "how many tasks of each client meet each fault")
	record = flag.String("record", "", "record Claude Code, and draw that into this file")
	update = flag.Bool("update", false, "write the table of docs/compatibility.md")
)

// taskgate is the program under test.
var taskgate string

func TestMain(m *testing.M) {
	programtest.AtOnce(6) // they wait most of the time
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "taskgate-agents")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state")); err != nil { // of the gateways
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	taskgate = filepath.Join(dir, "taskgate")
	if err := programtest.Build("-o", taskgate, "./cmd/taskgate"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// The go tool does not know that these files are what is tested, unless a test looks at them.
func TestLooksAtTheSources(t *testing.T) { programtest.LookAtSources(t) }
