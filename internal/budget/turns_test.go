package budget

import (
	"slices"
	"testing"
	"testing/synctest"
)

// TestTurns: of many long messages of one owner one is gone through at a time, first come, first
// served. Those of another owner, of none, and short ones wait for none of them.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100<<20, 10<<20, wait)
		b.turns.most = 1
		var begun []int
		ends := make(chan struct{})
		for i := range 4 {
			go b.HoldOf("attacker").InTurn(Long, func() {
				begun = append(begun, i) // one at a time
				<-ends
			})
			synctest.Wait()
		}
		for what, hold := range map[string]*Hold{"another owner": b.HoldOf("other"), "nobody": b.Hold()} {
			through := false
			hold.InTurn(Long, func() { through = true })
			if !through {
				t.Error("a long message waits of", what)
			}
		}
		short := false
		b.HoldOf("attacker").InTurn(Long-1, func() { short = true })
		if !short {
			t.Error("a short message waits")
		}
		for i := range 4 {
			if want := []int{0, 1, 2, 3}[:i+1]; !slices.Equal(begun, want) {
				t.Errorf("%d have begun, want %d", begun, want)
			}
			ends <- struct{}{}
			synctest.Wait()
		}
		if len(b.turns.owners) != 0 {
			t.Errorf("%d owners have turns", len(b.turns.owners))
		}
	})
}

// TestTurnOfAPanic: a turn ends in any case.
func TestTurnOfAPanic(t *testing.T) {
	b := New(100<<20, 10<<20, wait)
	func() {
		defer func() { _ = recover() }()
		b.HoldOf("ann").InTurn(Long, func() { panic("a message that nobody has thought of") })
	}()
	if len(b.turns.owners) != 0 {
		t.Errorf("%d owners have turns", len(b.turns.owners))
	}
	(*Bytes)(nil).HoldOf("ann").InTurn(Long, func() { b = nil })
	if b != nil {
		t.Error("without a budget nothing was done")
	}
}

// TestSharesOfOwners: an owner who holds its share waits for its own messages alone, and nobody
// waits for it.
func TestSharesOfOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(100, 20, wait)
		attacks := []*Hold{b.HoldOf("attacker"), b.HoldOf("attacker"), b.HoldOf("attacker"), b.HoldOf("attacker")}
		expect(t, "a first half", take(t.Context(), attacks[0], 20), nil, false)
		expect(t, "the share", take(t.Context(), attacks[1], 20), nil, false)
		expect(t, "what is set aside", take(t.Context(), attacks[2], 15), nil, false)
		more := take(t.Context(), attacks[3], 15)
		expect(t, "more than the share", more, nil, true)
		other := b.HoldOf("other")
		expect(t, "another owner", take(t.Context(), other, 30), nil, false)
		b.expectHeld(t, 85)
		nobody := take(t.Context(), b.Hold(), 15)
		expect(t, "one for whom there is no room", nobody, nil, true)
		late := take(t.Context(), b.HoldOf("late"), 5)
		expect(t, "one behind it", late, nil, true)
		other.Give(10)
		expect(t, "one for whom there is room now", nobody, nil, false)
		expect(t, "one behind it", late, nil, false)
		expect(t, "more than the share", more, nil, true)
		attacks[2].Release()
		expect(t, "what is set aside", more, nil, false)
		for _, h := range []*Hold{attacks[0], attacks[1], attacks[3], other} {
			h.Release()
		}
		b.expectHeld(t, 20)
		if len(b.owned) != 2 || b.Waiting() != 0 {
			t.Errorf("%v are owned, %d wait", b.owned, b.Waiting())
		}
	})
}
