package shim

import "testing"

// The status message of a task of the server is no piece of a result, where progress is.
func TestStatusIsNoPiece(t *testing.T) {
	r := &run{}
	w := &pieceWriter{run: r, batcher: batcher{Partials: Partials{Content: true}}}
	for _, p := range []Progress{{Message: "half done", Status: true}, {Message: "piece"}} {
		w.progress(p)
		if got := len(w.open); got != map[bool]int{true: 0, false: 1}[p.Status] {
			t.Errorf("%d pieces after %+v", got, p)
		}
	}
}
