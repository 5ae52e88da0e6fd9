package runner

import (
	"testing"
	"time"

	"taskgate/internal/metrics"
	"taskgate/shim"
)

// A run that writes to a client that does not read holds up nobody who counts what runs: it counts as it did before.
func TestCountingDoesNotWaitForAClient(t *testing.T) {
	r := &Run{}
	r.record.Task = shim.Task{ID: "hidden", Questions: []shim.Question{{Key: "q"}}}
	r.box.run, r.box.asked = r, []string{"q"}
	before := WithRun(metrics.ToolLoad{Running: 1}, r)
	r.mu.Lock() // as while it writes
	defer r.mu.Unlock()
	counted := make(chan metrics.ToolLoad, 1)
	go func() { counted <- WithRun(metrics.ToolLoad{Running: 1}, r) }()
	select {
	case got := <-counted:
		if got != before || got.Questions != 1 || got.Running != 1 {
			t.Errorf("%+v, and before %+v", got, before)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for the client")
	}
}
