package work

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurnMayBeKept: one has the turn at a time, also while it waits; the others wait in the order of their arrival, or
// until they give up.
func TestTurnMayBeKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := NewTurn()
		turn.Take()
		got := make(chan int, 2)
		for i := range 2 {
			go func() {
				turn.Take()
				defer turn.Give()
				got <- i
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := turn.TakeWithin(ctx); !errors.Is(err, context.DeadlineExceeded) || len(got) > 0 {
			t.Fatalf("%v, and %d have it besides", err, len(got))
		}
		turn.Give()
		if first, second := <-got, <-got; first != 0 || second != 1 {
			t.Errorf("first %d, then %d", first, second)
		}
	})
}
