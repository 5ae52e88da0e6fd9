package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"taskgate/internal/programtest"
)

// bin is where the programs under test are.
var bin string

func TestMain(m *testing.M) {
	if kind := os.Getenv(childVar); kind != "" {
		os.Exit(serveChild(kind))
	}
	if program := os.Getenv(throughVar); program != "" {
		os.Exit(serveThrough(program))
	}
	if isChild() {
		return
	}
	os.Exit(run(m))
}

// atOnce is how many tests run beside each other: more than there are processors,
// since most of them wait most of the time.
const atOnce = 6

func run(m *testing.M) int {
	programtest.AtOnce(atOnce)
	dir, err := os.MkdirTemp("", "taskgate-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	if err := os.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state")); err != nil { // of the gateways
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build builds the programs, the gateway with the race detector where the tests
// run with it.
func build() error {
	for _, flags := range [][]string{
		append(raceFlags, "./cmd/taskgate"),
		{"./examples/slowserver", "./examples/demo", "./internal/e2e/conformserver"},
	} {
		if err := programtest.Build(append([]string{"-o", bin + string(filepath.Separator)}, flags...)...); err != nil {
			return err
		}
	}
	return nil
}

func TestLooksAtTheSources(t *testing.T) { programtest.LookAtSources(t) }
