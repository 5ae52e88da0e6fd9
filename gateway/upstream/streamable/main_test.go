package streamable

import (
	"testing"

	"taskgate/internal/pool"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	pool.OverwriteReturned()
	goleak.VerifyTestMain(m)
}
