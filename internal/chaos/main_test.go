package chaos

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"taskgate/internal/programtest"
)

// The size of a run. The defaults are the short form; "make chaos" has a longer one.
var (
	seed     = flag.Uint64("seed", 1, "what the calls and the faults are derived from")
	calls    = flag.Int("calls", 150, "how many calls are made")
	workers  = flag.Int("workers", 30, "how many clients there are at a time")
	orphans  = flag.Int("orphans", 300, "how many tasks are lost with their gateway at once")
	gateways = flag.Int("gateways", 3, "how many gateways there are")
	backs    = flag.Int("backs", 5, "how often Redis comes back older, empty or after an outage")
	oldest   = flag.Duration("oldest", 2*time.Second, "how much older it comes back at most; it is away for up to three times as long")
	longest  = flag.Duration("longest", 4*time.Second, "how long the slowest calls take")
	logs     = flag.String("logs", "", "a directory for what the gateways log")
	program  = flag.String("taskgate", "", "the gateway's program, if it is not to be built")
	before   = flag.String("before", "", "that of another version: each gateway is of either in turn, from start to start")
)

// bin is where the gateway's program is.
var bin string

// gatewayProgram is the gateway's program.
func gatewayProgram() string { return cmp.Or(*program, filepath.Join(bin, "taskgate")) }

func TestMain(m *testing.M) {
	if os.Getenv(serverVar) != "" {
		serveMarker()
		return
	}
	flag.Parse()
	var builds [][]string
	if *program == "" && programtest.RunsLong() {
		builds = append(builds, append(raceFlags, "./cmd/taskgate"))
	}
	os.Exit(programtest.Run(m, &bin, builds...))
}
