package legacy_test

import (
	"runtime/debug"
	"testing"

	"taskgate/internal/pool"

	"go.uber.org/goleak"
)

// TestMain fails if something still runs after all tests. Each script of the store in the process makes a Lua state
// anew: a third of the time would go to the collector.
func TestMain(m *testing.M) {
	pool.OverwriteReturned()
	debug.SetGCPercent(400)
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("taskgate/internal/procgroup.serve")) // which starts servers of Redis
}
