package redisstore

import (
	"context"
	"testing"
	"time"

	"taskgate/gateway/upstream"
	"taskgate/internal/redistest"
	"taskgate/shim/shimtest"
)

var _ upstream.Offers = (*Offers)(nil)

func TestOffers(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]shimtest.OpenStore{
		"embedded": inProcess, "redis": over(redistest.Start(t).URL()),
		"cluster": over(redistest.ClusterURL(redistest.Cluster(t, 3))),
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			testOffers(t, store().(*Store).Offers("up"), store().(*Store).Offers("up"))
		})
	}
}

// offerWords are the refs that one replica is told of.
func offerWords(t *testing.T, o *Offers) <-chan string {
	t.Helper()
	words, done := make(chan string, 100), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		o.Watch(ctx, func(ref string) { words <- ref })
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return words
}

func testOffers(t *testing.T, a, b *Offers) {
	ctx := t.Context()
	const ref, other, never = "0a1b", "ffee", "0c"
	words := offerWords(t, b)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for heard := false; !heard; { // until it has subscribed
		if open, err := a.Offer(ctx, ref, []byte(`{"q":1}`), time.Minute); !open || err != nil {
			t.Fatalf("offer: %t %v", open, err)
		}
		select {
		case word := <-words:
			if heard = true; word != ref {
				t.Errorf("told of %q", word)
			}
		case <-again.C:
		case <-ctx.Done():
			t.Fatal("nobody is told")
		}
	}
	look := func(ref, want string, over bool) {
		t.Helper()
		if got, withdrawn, err := b.Look(ctx, ref); string(got) != want || withdrawn != over || err != nil {
			t.Errorf("look at %s: %q %t %v, want %q %t", ref, got, withdrawn, err, want, over)
		}
	}
	take := func(o *Offers, ref, by string, want bool) {
		t.Helper()
		if got, err := o.Take(ctx, ref, by, time.Minute); got != want || err != nil {
			t.Errorf("%s takes %s: %t %v, want %t", by, ref, got, err, want)
		}
	}
	look(ref, `{"q":1}`, false)
	take(b, ref, "b", true)
	take(a, ref, "a", false)
	take(b, ref, "b", true) // a repeat
	look(ref, "", false)
	if open, err := a.Offer(ctx, ref, []byte(`{"q":1}`), time.Minute); open || err != nil {
		t.Errorf("offered though taken: %t %v", open, err)
	}
	take(a, other, "a", true) // before it was offered
	if open, err := b.Offer(ctx, other, []byte(`{}`), time.Minute); open || err != nil {
		t.Errorf("offered though taken: %t %v", open, err)
	}
	look(never, "", false)
	for range 2 {
		if err := a.Withdraw(ctx, ref); err != nil {
			t.Error(err)
		}
	}
	look(ref, "", true)
	take(a, ref, "a", false)
	take(b, ref, "b", true) // it has it, withdrawn or not
	if err := a.Withdraw(ctx, never); err != nil {
		t.Error(err)
	}
	look(never, "", false)
	if open, err := a.Offer(ctx, "dd", []byte(`{}`), time.Minute); !open || err != nil {
		t.Errorf("offer: %t %v", open, err)
	}
	if err := a.Withdraw(ctx, "dd"); err != nil {
		t.Error(err)
	}
	take(b, "dd", "b", false)
	if ttl := a.store.client.PTTL(ctx, a.key(ref)).Val(); ttl <= 0 || ttl > time.Minute {
		t.Errorf("it is kept for %v", ttl)
	}
}
