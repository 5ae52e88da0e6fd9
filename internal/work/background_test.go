package work

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/singleflight"
)

var errOver = errors.New("it is over")

// A caller who leaves does not end what it has begun: another one, who waits for the same, gets
// it. It is done once.
func TestOnceOutlivesItsFirstCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, g, times := NewBackground(errOver), singleflight.Group{}, 0
		do := func(ctx context.Context) (string, error) {
			times++
			return "done", Pause(ctx, time.Second)
		}
		first, leave := context.WithCancel(t.Context())
		left, got := make(chan error, 1), make(chan string, 1)
		go func() {
			_, err := Once(first, b, &g, "key", do)
			left <- err
		}()
		synctest.Wait()
		go func() {
			v, _ := Once(t.Context(), b, &g, "key", do)
			got <- v
		}()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("the one who left got %v", err)
		}
		if v := <-got; v != "done" || times != 1 {
			t.Errorf("the other one got %q, and it was done %d times", v, times)
		}
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Close ends what runs, waits for that, and lets nothing more begin.
func TestBackgroundThatIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, g := NewBackground(errOver), singleflight.Group{}
		var why error
		b.Go(t.Context(), func(ctx context.Context) {
			why = Pause(ctx, time.Hour)
			<-time.After(time.Second) // it takes its time
		})
		synctest.Wait()
		brief, stop := context.WithTimeout(t.Context(), time.Millisecond)
		defer stop()
		if err := b.Close(brief); err == nil {
			t.Error("nothing was waited for")
		}
		if err := b.Close(t.Context()); err != nil || !errors.Is(why, errOver) {
			t.Errorf("Close: %v; what ran has ended with %v", err, why)
		}
		if b.Go(t.Context(), func(context.Context) {}) {
			t.Error("more could begin")
		}
		if _, err := Once(t.Context(), b, &g, "", func(context.Context) (int, error) { return 1, nil }); !errors.Is(err, errOver) {
			t.Errorf("Once: %v", err)
		}
		if b.Life().Err() == nil {
			t.Error("its life goes on")
		}
	})
}
