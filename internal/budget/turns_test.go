package budget

import (
	"slices"
	"testing"
	"testing/synctest"
)

// scans are works on long messages that last until they are told to end.
type scans struct {
	b     *Bytes
	begun []string // whose, in order
	ends  chan struct{}
}

func newScans() *scans {
	b := New(100<<20, 10<<20, wait)
	b.turns.free = 1
	return &scans{b: b, ends: make(chan struct{})}
}

// begin asks for a turn for a message of n bytes.
func (s *scans) begin(owner string, n int) {
	go s.b.HoldOf(owner).InTurn(n, func() {
		s.begun = append(s.begun, owner) // one at a time
		<-s.ends
	})
	synctest.Wait()
}

// end ends the one whose turn it is.
func (s *scans) end() {
	s.ends <- struct{}{}
	synctest.Wait()
}

// expect checks whose turns have begun.
func (s *scans) expect(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(s.begun, want) {
		t.Errorf("%q have begun, want %q", s.begun, want)
	}
}

// TestTurns: of many long messages of one owner one is gone through at a time. A long one of
// another owner is the next, however many wait, and a short one waits for none.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScans()
		for range 4 {
			s.begin("attacker", Long)
		}
		s.expect(t, "attacker")
		short := false
		s.b.HoldOf("other").InTurn(Long-1, func() { short = true })
		if !short {
			t.Error("a short message was not gone through")
		}
		s.begin("other", Long)
		s.begin("other", Long)
		s.begin("third", Long)
		s.expect(t, "attacker")
		want := []string{"attacker"}
		for _, owner := range []string{"other", "third", "attacker", "other", "attacker", "attacker"} {
			s.end()
			want = append(want, owner)
			s.expect(t, want...)
		}
		s.end()
		if s.b.turns.free != 1 || len(s.b.turns.lines) != 0 {
			t.Errorf("%d turns are free, and %d owners wait", s.b.turns.free, len(s.b.turns.lines))
		}
	})
}

// TestTurnOfAPanic: a turn ends in any case.
func TestTurnOfAPanic(t *testing.T) {
	b := newScans().b
	func() {
		defer func() { _ = recover() }()
		b.Hold().InTurn(Long, func() { panic("a message that nobody has thought of") })
	}()
	b.Hold().InTurn(Long, func() {})
	if b.turns.free != 1 {
		t.Errorf("%d turns are free", b.turns.free)
	}
	(*Bytes)(nil).Hold().InTurn(Long, func() { b = nil })
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
