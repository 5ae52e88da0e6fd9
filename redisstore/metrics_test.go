package redisstore

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"taskgate/internal/metrics/metricstest"
	"taskgate/shim"
)

// TestStoreMetrics: each operation is measured by its name; only a store that does not do it is an
// error, and not what it says of a task.
func TestStoreMetrics(t *testing.T) {
	const of = "taskgate.store.operation.duration "
	m, r := metricstest.New(t)
	s, err := Open(t.Context(), "embedded", Options{Metrics: m})
	must(t, err)
	task := create(t, s, newTask())
	read(t, s, task.ID, shim.Summary)
	_, err = s.Get(t.Context(), shim.NewID(), shim.Summary)
	is(t, err, shim.ErrNotFound)
	end(t, s, task)
	r.Want(map[string]float64{
		of + "taskgate.store.operation=create": 1,
		of + "taskgate.store.operation=get":    2,
		of + "taskgate.store.operation=apply":  1,
	})
	must(t, s.Close())

	broken := Options{Metrics: m, RetryFor: time.Millisecond, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: errors.New("nobody is there")}
	}}
	s, err = Open(t.Context(), "redis://127.0.0.1:1/0", broken)
	must(t, err)
	_, err = s.Get(t.Context(), task.ID, shim.Summary)
	is(t, err, shim.ErrUnavailable)
	r.Want(map[string]float64{of + "error.type=unavailable taskgate.store.operation=get": 1})
	must(t, s.Close())
}
