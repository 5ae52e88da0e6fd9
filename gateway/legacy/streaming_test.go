package legacy

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"taskgate/internal/wiretest"
	"taskgate/shim"
)

// TestPullSignalIsOfOnePush: the signal that ends a push comes late, and to who sent it,
// too. It ends that push and no later one of the same task.
func TestPullSignalIsOfOnePush(t *testing.T) {
	table, _ := newTable(wiretest.OpenSessions(t, 10, time.Hour))
	s := mustCreate(t, table, sessionState{})
	defer s.release()
	id := shim.ID("task")
	before, err := s.openPush(t.Context(), t.Context(), id, rand.Text())
	if err != nil {
		t.Fatal(err)
	}
	before.end()
	p, err := s.openPush(t.Context(), t.Context(), id, rand.Text())
	if err != nil {
		t.Fatal(err)
	}
	defer p.end()
	if name, err := s.pushed(t.Context(), id); err != nil || name != p.name {
		t.Errorf("marked is %q: %v", name, err)
	}
	table.signalled(s.id, pullSignal+before.name, time.Now())
	if err := p.ctx.Err(); err != nil {
		t.Errorf("the signal for another push: %v", err)
	}
	table.signalled(s.id, pullSignal+p.name, time.Now())
	if err := context.Cause(p.ctx); err != errCut {
		t.Errorf("the signal for this push: %v", err)
	}
}
