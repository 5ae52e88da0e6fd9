package shim_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"taskgate/shim"
)

// A replica that is cut off, and knows nothing of what becomes of its task meanwhile,
// adopts it again when the one that had it is lost as well. What runs there still is of
// before that: the retry of a round, which the other one sent, is not sent again, and
// what is said from then on goes to the stream of the new run.
func TestTaskAdoptedBack(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		cut := &faultyStore{Store: w.store.Store}
		first := asksInRounds(time.Second, "x")
		s, err := shim.New(shim.Options{
			Replica: "cut", Store: cut, Heartbeat: 5 * time.Second,
			Servers: map[string]shim.Server{"up": {Upstream: first, Policy: func(string) shim.Policy { return policy(shim.Always) }}},
			Logger:  slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = s.Run(ctx) }()
		w.stops = append(w.stops, func() {
			stop()
			<-ended
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		c := taskCall()
		task := begin(t, s, c)
		pass(2 * time.Second)
		cut.down.Store(true)

		// The other one plays the round, and is lost while the server has the retry.
		second := &scripted{call: sending(func(ctx context.Context, r shim.Request, s shim.Sink) (shim.Reply, error) {
			return after(ctx, time.Hour)
		})}
		w.lostWhile("b", second, func(b *shim.Shim) {
			pass(20 * time.Second)
			updateTask(t, b, task.ID, results("q1"))
			pass(time.Second)
			if second.calls.Load() != 1 {
				t.Fatalf("the other replica has sent %d retries", second.calls.Load())
			}
		})
		cut.down.Store(false)
		pass(time.Minute)
		got := read(t, s, task.ID)
		wantStatus(t, got, shim.Failed)
		if !strings.Contains(string(got.Outcome.Error), "replica that ran this call was lost") {
			t.Errorf("%s", got.Outcome.Error)
		}
		if first.requests() != params {
			t.Errorf("the replica that was cut off sent\n%s", first.requests())
		}
	})
}

// lostWhile runs a replica that does something and then is gone.
func (w *world) lostWhile(name string, u shim.Upstream, do func(*shim.Shim)) {
	w.t.Helper()
	s, err := shim.New(shim.Options{
		Replica: shim.Replica(name), Store: w.store, Heartbeat: 5 * time.Second,
		Servers: map[string]shim.Server{"up": {Upstream: u, Policy: func(string) shim.Policy { return policy(shim.Always) }}},
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx) }()
	do(s)
	stop()
	<-ended
	w.mute(s)
}
