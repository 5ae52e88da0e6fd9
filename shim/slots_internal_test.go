package shim

import (
	"fmt"
	"testing"
)

// Names of tools are the clients' to choose, so nothing is kept per name once its
// last call has ended.
func TestNothingIsKeptPerTool(t *testing.T) {
	s := newServer("up", Server{Concurrency: 2, Queue: 1}, nil).slots
	for i := range 100 {
		tk, err := s.reserveSlot(fmt.Sprintf("tool %d", i), 1, false)
		if err != nil {
			t.Fatal(err)
		}
		tk.dropSlot()
		tk.dropSlot() // harmless
	}
	if len(s.tools) != 0 || s.server.held != 0 || s.server.places != 0 {
		t.Errorf("%d tools, %d slots and %d places are held", len(s.tools), s.server.held, s.server.places)
	}
	held, err := s.reserveSlot("one", 1, false)
	if err != nil {
		t.Fatal(err)
	}
	queued, err := s.reserveSlot("one", 1, false)
	if err != nil || !queued.isQueued() {
		t.Fatalf("%v, queued %v", err, queued.isQueued())
	}
	if _, err := s.reserveSlot("one", 1, false); err == nil {
		t.Error("a full queue took one more")
	}
	queued.dropSlot()
	held.dropSlot()
	if len(s.tools) != 0 || s.server.held != 0 {
		t.Errorf("%d tools and %d slots are held", len(s.tools), s.server.held)
	}
}
