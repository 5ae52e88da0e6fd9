package node

import (
	"fmt"
	"testing"

	"taskgate/shim"
)

// Names of tools are the clients' to choose, so nothing is kept per name once its
// last call has ended.
func TestNothingIsKeptPerTool(t *testing.T) {
	s := NewServer("up", shim.Server{Concurrency: 2, Queue: 1}, nil).Slots
	for i := range 100 {
		tk, err := s.ReserveSlot(shim.Request{Name: fmt.Sprintf("tool %d", i)}, 1, false)
		if err != nil {
			t.Fatal(err)
		}
		tk.DropSlot()
		tk.DropSlot() // harmless
	}
	if len(s.tools) != 0 || s.server.held != 0 || s.server.places != 0 {
		t.Errorf("%d tools, %d slots and %d places are held", len(s.tools), s.server.held, s.server.places)
	}
	held, err := s.ReserveSlot(shim.Request{Name: "one"}, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	queued, err := s.ReserveSlot(shim.Request{Name: "one"}, 1, false)
	if err != nil || !queued.IsQueued() {
		t.Fatalf("%v, queued %v", err, queued.IsQueued())
	}
	if _, err := s.ReserveSlot(shim.Request{Name: "one"}, 1, false); err == nil {
		t.Error("a full queue took one more")
	}
	queued.DropSlot()
	held.DropSlot()
	if len(s.tools) != 0 || s.server.held != 0 {
		t.Errorf("%d tools and %d slots are held", len(s.tools), s.server.held)
	}
}
