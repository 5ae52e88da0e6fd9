package shim

import (
	"context"
	"errors"
	"testing"
	"time"
)

// fullStore has no room for any task.
type fullStore struct{ Store }

func (fullStore) Beat(context.Context, Replica, time.Duration) error { return nil }
func (fullStore) Create(context.Context, Task, ...Batch) (Task, error) {
	return Task{}, &BusyError{Key: "max_stored_bytes_per_owner"}
}

// A task that there is no room for leaves nothing behind here, however often it is tried.
func TestRefusedTaskIsForgotten(t *testing.T) {
	s, err := New(Options{Replica: "r", Store: fullStore{}, Servers: map[string]Server{
		"up": {Policy: func(string) Policy { return Policy{Tasks: Required, TTL: time.Hour} }, MaxTasksPerOwner: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	beating, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.heart.run(beating) }()
	for range 3 {
		var busy *BusyError
		c := Call{Upstream: "up", Handle: true, Request: Request{Method: callTool}, Principal: Principal{Subject: "ann"}}
		if _, err := s.Call(t.Context(), c); !errors.As(err, &busy) || busy.Key != "max_stored_bytes_per_owner" {
			t.Fatal(err)
		}
	}
	if n := len(s.runs.coming); n > 0 {
		t.Errorf("%d tasks are still expected", n)
	}
	stop()
	<-done
	if err := s.Halt(t.Context()); err != nil {
		t.Error(err)
	}
}
