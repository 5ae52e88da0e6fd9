package runner

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/shim"
	"taskgate/shim/node"
)

// The status message of a task of the server is no piece of a result, where progress is.
func TestStatusIsNoPiece(t *testing.T) {
	r := &Run{}
	w := &outbox{run: r, gathers: true, batcher: batcher{Partials: shim.Partials{Content: true}}}
	for _, p := range []shim.Progress{{Message: "half done", Status: true}, {Message: "piece"}} {
		w.gatherProgress(p)
		if got := len(w.open); got != map[bool]int{true: 0, false: 1}[p.Status] {
			t.Errorf("%d pieces after %+v", got, p)
		}
	}
}

// What waited for the store for long, and was stored again after the store had forgotten it, is kept from then on.
func TestStoredPiecesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b batcher
		b.addPiece(json.RawMessage(`{}`), mostWaiting, func(int64) bool { return true })
		b.closeOpen(nil)
		for range 3 {
			<-time.After(node.DefaultSettle + time.Second)
			b.advanceBy(1)
			<-time.After(node.DefaultSettle - time.Second)
			if b.rewindBy(1) != 1 || len(b.queue) != 1 {
				t.Fatalf("%d batches are to be stored again", len(b.queue))
			}
		}
	})
}
