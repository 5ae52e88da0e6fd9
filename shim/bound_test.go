package shim_test

import (
	"errors"
	"sync"
	"testing"

	"taskgate/shim"
)

// enters counts one more, and returns the key of the limit that keeps it out, "" for none.
func enters(b *shim.Bound, owner string) string {
	var busy *shim.BusyError
	if errors.As(b.Enter(owner), &busy) {
		return busy.Key
	}
	return ""
}

func TestBound(t *testing.T) {
	b := &shim.Bound{Key: "max_things", Most: 4, MostPerOwner: 2}
	for i, step := range []struct{ owner, want string }{
		{"ann", ""}, {"ann", ""}, {"ann", "max_things_per_owner"},
		{"", ""}, {"", ""}, // nobody's have no limit of their own
		{"bob", "max_things"}, {"", "max_things"},
	} {
		if got := enters(b, step.owner); got != step.want {
			t.Errorf("step %d, %q: %q, want %q", i, step.owner, got, step.want)
		}
	}
	b.Leave("")
	if got := enters(b, "bob"); got != "" {
		t.Errorf("after one has left: %s", got)
	}
	b.Force("ann")
	b.Leave("bob")
	if got := enters(b, "bob"); got != "max_things" {
		t.Errorf("what is forced counts: %q", got)
	}
}

// What has left leaves nothing behind, and no limit is no limit.
func TestBoundConcurrent(t *testing.T) {
	b := &shim.Bound{Key: "k", Most: 1000, MostPerOwner: 8}
	free := &shim.Bound{}
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for range 1000 {
				if enters(b, "ann") != "" || enters(free, "ann") != "" {
					t.Error("refused")
					return
				}
				b.Leave("ann")
			}
		})
	}
	work.Wait()
	for range 8 {
		if enters(b, "ann") != "" {
			t.Error("something was left behind")
		}
	}
	if enters(b, "ann") == "" {
		t.Error("one too many")
	}
}
