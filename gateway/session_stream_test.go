package gateway

import (
	"context"
	"testing"
	"time"
)

// keptBy has the log of a GET stream be kept by one replica after the other, whenever it
// is looked at; by the last one for good.
type keptBy struct {
	Sessions
	names []string
}

func (k *keptBy) Since(context.Context, string, string, int64, func(int64, []byte)) (string, []byte, error) {
	name := k.names[0]
	if len(k.names) > 1 {
		k.names = k.names[1:]
	}
	return "open", []byte(name), nil
}

// TestMovedBack: a GET stream that comes to this replica while that finds out that it has
// lost the one before is not ended.
func TestMovedBack(t *testing.T) {
	store := &keptBy{Sessions: openSessions(t, 10, time.Hour)}
	table, _ := newTable(store)
	s := mustCreate(t, table, sessionState{})
	defer s.release()
	for name, ends := range map[string]bool{table.name: false, "other": true} {
		store.names = []string{"other", name}
		s.attach()
		ctx, end := context.WithCancel(t.Context())
		context.AfterFunc(ctx, s.detach)
		s.mayEnd(end)
		s.moved(t.Context())
		if got := ctx.Err() != nil; got != ends {
			t.Errorf("kept by %s: ended %t", name, got)
		}
		end()
		settled(t, "the end", func() bool { return !s.attached() })
	}
}
