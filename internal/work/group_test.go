package work

import "testing"

// A call that comes once a drain has begun is refused, also where the drain has nothing to
// wait for; one that came before is waited for.
func TestNoGuestAfterTheDrain(t *testing.T) {
	var g Group
	if !g.Enter() {
		t.Fatal("refused before the drain")
	}
	g.Refuse()
	if g.Enter() {
		t.Error("admitted during the drain")
	}
	if !g.begin() {
		t.Error("what runs could not begin more")
	}
	g.Leave()
	g.Leave()
	if err := g.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if g.Enter() {
		t.Error("admitted after the drain")
	}
}
