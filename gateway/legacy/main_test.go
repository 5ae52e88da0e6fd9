package legacy_test

import (
	"os"
	"runtime/debug"
	"testing"
)

// Each script of the store in the process makes a Lua state anew: a third of the time would go to the collector.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}
