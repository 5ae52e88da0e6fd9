package sparing_test

import (
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/sparing"
)

func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r sparing.Repeats[string]
		note := func(key string, want int) {
			t.Helper()
			if _, times := r.Note(key); times != want {
				t.Errorf("%q is logged with %d, want %d", key, times, want)
			}
		}
		note("a", 1)
		note("a", 0)
		note("b", 1)
		note("a", 0)
		if due := r.Due(); len(due) != 0 {
			t.Errorf("%v is due within the minute", due)
		}
		<-time.After(sparing.Again)
		if due := r.Due(); len(due) != 1 || due["a"] != 2 {
			t.Errorf("%v is due, want the two of a that were not logged", due)
		}
		note("a", 0)
		note("b", 1)
	})
}

// Anybody can cause things with names of their own: all that come when there are a thousand count together.
func TestRepeatsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r sparing.Repeats[int]
		logged := 0
		for i := range 100_000 {
			key, times := r.Note(i + 1)
			if times == 0 {
				continue
			}
			if logged++; key == 0 && logged != 1001 {
				t.Fatalf("line %d is about the rest", logged)
			}
		}
		if logged != 1001 {
			t.Errorf("%d things are logged, want a thousand and the rest", logged)
		}
		<-time.After(sparing.Again)
		if due := r.Due(); due[0] != 98_999 {
			t.Errorf("the rest counts %d", due[0])
		}
	})
}

func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l sparing.Lines
		passed := 0
		for range 250 {
			left, pass := l.Pass()
			if left != 0 {
				t.Fatalf("%d lines are told within the interval", left)
			}
			if pass {
				passed++
			}
		}
		if passed != 100 {
			t.Errorf("%d lines pass, want 100", passed)
		}
		if left := l.Left(false); left != 0 {
			t.Errorf("%d lines are told before the interval is over", left)
		}
		<-time.After(10 * time.Second)
		if left, pass := l.Pass(); left != 150 || !pass {
			t.Errorf("after the interval: %d lines left, pass %v", left, pass)
		}
		if left := l.Left(true); left != 0 {
			t.Errorf("%d lines are told a second time", left)
		}
	})
}
