package legacy

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
	"taskgate/internal/wiretest"
	"taskgate/redisstore"
	"taskgate/shim"
)

// tablesOfReplicas are two replicas over one store. What they hear of each other goes
// through that.
func tablesOfReplicas(t *testing.T) (a, b *Table) {
	t.Helper()
	store, err := redisstore.Open(t.Context(), "embedded",
		redisstore.Options{ClockTTL: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 2)
	for _, table := range []**Table{&a, &b} {
		*table, _ = newTable(store.Sessions(10, time.Hour))
		go func() { done <- (*table).Run(ctx) }()
	}
	t.Cleanup(func() {
		stop()
		_ = a.Close(context.Background())
		_ = b.Close(context.Background())
		if err := errors.Join(<-done, <-done, store.Close()); err != nil {
			t.Error(err)
		}
	})
	return a, b
}

// A signal that cancels a request reaches the replica where that runs, whatever its id is. It
// is kept for a while, and cancels no later request with the same id: neither one that its
// replica has begun meanwhile, nor one at a replica that did not know the session.
func TestCancelOfAnEndedRequest(t *testing.T) {
	long := jsonrpc.StringID(strings.Repeat("x", 1<<20))
	for name, id := range map[string]jsonrpc.ID{"short": jsonrpc.IntID(5), "long": long} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := tablesOfReplicas(t)
				s := mustCreate(t, a, sessionState{Upstream: "up"})
				defer s.endUse()
				if err := s.abortRequest(t.Context(), id); err != nil { // it has ended
					t.Fatal(err)
				}
				wiretest.Wait(10 * time.Second)
				o, err := b.open(t.Context(), s.id, "up", shim.Principal{})
				if err != nil {
					t.Fatal(err)
				}
				defer o.endUse()
				call, end, _ := o.beginRequest(t.Context(), id)
				defer end()
				wiretest.Wait(2 * time.Minute)
				if call.Err() != nil {
					t.Fatal("the cancellation of another request has ended it")
				}
				if err := s.abortRequest(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				wiretest.Wait(time.Second)
				if !errors.Is(context.Cause(call), shim.ErrCancelled) {
					t.Error("it is not cancelled")
				}
				if n := len(callKey(id)); n > 100 {
					t.Errorf("%d bytes go to every replica", n)
				}
			})
		})
	}
}

// A progress token is kept with the call and repeated with each progress. One that is far
// longer than any client makes is none.
func TestLongProgressToken(t *testing.T) {
	a, _ := tablesOfReplicas(t)
	s := mustCreate(t, a, sessionState{Upstream: "up"})
	defer s.endUse()
	for size, kept := range map[int]bool{100: true, 1 << 20: false} {
		token := `"` + strings.Repeat("x", size) + `"`
		msg := jsonrpc.Message{Kind: jsonrpc.Request, Method: "tools/call", Params: []byte(`{"_meta":{"progressToken":` + token + `}}`)}
		if q := newLegacyRequest(&Handler{}, s, shim.Principal{}, msg); (string(q.token) == token) != kept || !kept && q.token != nil {
			t.Errorf("of %d bytes %d are kept", size, len(q.token))
		}
	}
}
