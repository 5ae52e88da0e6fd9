package redisstore

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"taskgate/internal/redistest"
	"taskgate/shim"
)

// Appends of many tasks at once go together, each to its own task and in its order, also
// where Redis forgets the scripts meanwhile.
func TestWritesGather(t *testing.T) {
	t.Parallel()
	const writers, each = 200, 10
	for name, url := range map[string]string{"redis": redistest.Start(t).URL(), "embedded": "embedded"} {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, url, testOptions())
			ids := own(t, s, writers)
			g := &gate{open: make(chan struct{})}
			close(g.open)
			s.client.AddHook(g)
			var all sync.WaitGroup
			for i, id := range ids {
				all.Go(func() {
					for n := range int64(each) {
						if i == 0 && name == "redis" {
							_ = s.client.ScriptFlush(t.Context()).Err()
						}
						piece := shim.Batch{Content: json.RawMessage(fmt.Sprintf(`["%d %d"]`, i, n))}
						if err := appendBatches(t.Context(), s, id, shim.Position(n), piece); err != nil {
							t.Errorf("%d %d: %v", i, n, err)
						}
					}
				})
			}
			all.Wait()
			for i, id := range ids {
				got, err := s.Batches(t.Context(), id, 0)
				must(t, err)
				if len(got) != each || string(got[each-1]) != fmt.Sprintf(`["%d %d"]`, i, each-1) {
					t.Errorf("%d: %s", i, got)
				}
			}
			if len(g.pipelines) == 0 || slices.Max(g.pipelines) > maxWrites {
				t.Errorf("pipelines of %v", g.pipelines)
			}
		})
	}
}

// A write that is refused is refused alone: those in the same pipeline are not.
func TestWritesFailAlone(t *testing.T) {
	t.Parallel()
	s := openTest(t, redistest.Start(t).URL(), testOptions())
	ids := own(t, s, 100)
	piece := shim.Batch{Content: json.RawMessage(`["a"]`)}
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			at, want := shim.Position(0), error(nil)
			switch i % 3 {
			case 1:
				at, want = 7, shim.ErrPosition
			case 2:
				id, want = shim.NewID(), shim.ErrNotFound
			}
			if err := appendBatches(t.Context(), s, id, at, piece); want == nil && err != nil || want != nil && err == nil {
				t.Errorf("%d: %v, want %v", i, err, want)
			}
		})
	}
	all.Wait()
}
