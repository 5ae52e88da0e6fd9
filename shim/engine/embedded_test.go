package engine_test

import (
	"testing"

	"taskgate/redisstore"
	"taskgate/shim"
)

// openEmbedded opens the embedded store on the bubble's clock.
func openEmbedded(t *testing.T) shim.Store {
	t.Helper()
	s, err := redisstore.Open(t.Context(), "embedded", redisstore.Options{ClockTTL: true})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}
