package e2e

import (
	"os"
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
	programtest.AtOnce(atOnce)
	// The gateway has the race detector where the tests run with it.
	os.Exit(programtest.Run(m, &bin, append(raceFlags, "./cmd/taskgate"), []string{"./examples/slowserver", "./examples/demo", "./internal/e2e/conformserver"}))
}

// atOnce is how many tests run beside each other: more than there are processors,
// since most of them wait most of the time.
const atOnce = 6

func TestLooksAtTheSources(t *testing.T) { programtest.LookAtSources(t) }
