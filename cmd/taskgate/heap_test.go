package main

import (
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// TestTuneCollector: the limit of the container becomes that of the process, and the
// collector gets headroom below it, unless the operator has chosen.
func TestTuneCollector(t *testing.T) {
	none := func() (uint64, error) { return 0, memlimit.ErrNoLimit }
	for _, c := range []struct {
		name      string
		env       map[string]string
		container memlimit.Provider
		limit     int64
		ballast   int
	}{
		{"no container", nil, none, math.MaxInt64, headroom},
		{"a large one", nil, memlimit.Limit(10 << 30), 9<<30 + headroom, headroom},
		{"a small one", nil, memlimit.Limit(100 << 20), 90<<20 + 90<<20/8, 90 << 20 / 8},
		{"GOGC", map[string]string{"GOGC": "100"}, memlimit.Limit(10 << 30), 9 << 30, 0},
		{"GOMEMLIMIT", map[string]string{"GOMEMLIMIT": "1GiB"}, memlimit.Limit(10 << 30), math.MaxInt64, 0},
		{"AUTOMEMLIMIT", map[string]string{"AUTOMEMLIMIT": "off"}, memlimit.Limit(10 << 30), math.MaxInt64, headroom},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range []string{"GOGC", "GOMEMLIMIT", "AUTOMEMLIMIT"} {
				t.Setenv(name, "") // and so back to what it is now
				os.Unsetenv(name)
			}
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
			defer func() { ballast = nil }()
			tuneCollector(c.container, slog.New(slog.DiscardHandler))
			if got := debug.SetMemoryLimit(-1); got != c.limit || len(ballast) != c.ballast {
				t.Errorf("the limit is %d, want %d; the ballast has %d bytes, want %d", got, c.limit, len(ballast), c.ballast)
			}
		})
	}
}
