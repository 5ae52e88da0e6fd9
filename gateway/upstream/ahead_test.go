package upstream

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskgate/internal/jsonrpc"
)

// ids are the event ids of what is held.
func ids(held []item) (out []string) {
	for _, it := range held {
		out = append(out, it.eventID)
	}
	return out
}

// What is read ahead comes out in order, no more is held than the bound, and reading
// goes on as soon as there is room.
func TestAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAhead(100)
		pushed := 0
		go func() {
			for range maxBacklog + 2 {
				a.push(t.Context(), item{eventID: strconv.Itoa(pushed)})
				pushed++
			}
		}()
		for want := range maxBacklog + 2 {
			synctest.Wait()
			if pushed != min(maxBacklog+want, maxBacklog+2) {
				t.Fatalf("%d were read when %d had been handled", pushed, want)
			}
			var it item
			ok := a.next(&it, nil, nil)
			if want == 1 { // to be handled later, and still the next
				a.back(it)
				ok = a.next(&it, nil, nil)
			}
			if !ok || it.eventID != strconv.Itoa(want) {
				t.Fatalf("item %q, not %d", it.eventID, want)
			}
		}
	})
}

// Bytes are bounded like events. One event may be larger than all that is held.
func TestAheadIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAhead(100)
		var pushed atomic.Int32
		large := item{msgs: []jsonrpc.Message{{Raw: make([]byte, 60)}}}
		go func() {
			for range 4 {
				a.push(t.Context(), large)
				pushed.Add(1)
			}
		}()
		for handled, want := range []int32{2, 3, 4, 4} {
			synctest.Wait()
			if pushed.Load() != want {
				t.Fatalf("%d were read when %d had been handled", pushed.Load(), handled)
			}
			a.next(new(item), nil, nil)
		}
	})
}

// Who waits for an item, or for room, ends with what it belongs to. An item does not
// count any more once it is late.
func TestAheadEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAhead(100)
		life, end := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, end)
		if a.next(new(item), life.Done(), nil) {
			t.Error("an item that nobody read")
		}
		if a.next(new(item), nil, time.After(time.Second)) {
			t.Error("an item that nobody read")
		}
		for range maxBacklog {
			a.push(life, item{})
		}
		if a.push(life, item{}) {
			t.Error("there was no room, and life was over")
		}
		late := time.NewTimer(0)
		synctest.Wait()
		if a.next(new(item), nil, late.C) {
			t.Error("an item after its time")
		}
	})
}

// Who looks sees what is held, and then everything that is added, until it looks away.
func TestAheadShows(t *testing.T) {
	a := newAhead(100)
	a.push(t.Context(), item{eventID: "a"})
	var seen [][]string
	a.show(func(held []item) { seen = append(seen, ids(held)) })
	a.push(t.Context(), item{eventID: "b"})
	a.show(nil)
	a.push(t.Context(), item{eventID: "c"})
	if len(seen) != 2 || len(seen[0]) != 1 || len(seen[1]) != 2 || seen[1][1] != "b" {
		t.Errorf("seen: %v", seen)
	}
}
