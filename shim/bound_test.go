package shim_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"taskgate/shim"
)

// enters counts one more, and returns the key of the limit that keeps it out, "" for none.
func enters(b *shim.Bound, owner string) string {
	var busy *shim.BusyError
	if errors.As(b.Enter(shim.Share{Owner: owner}), &busy) {
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
	b.Leave(shim.Share{Owner: ""})
	if got := enters(b, "bob"); got != "" {
		t.Errorf("after one has left: %s", got)
	}
	b.Force(shim.Share{Owner: "ann"})
	b.Leave(shim.Share{Owner: "bob"})
	if got := enters(b, "bob"); got != "max_things" {
		t.Errorf("what is forced counts: %q", got)
	}
}

// TestShares: who has no owner has half of a limit with all others without one, and half of that for one
// address; no owner has more than half. So each leaves room for the others.
func TestShares(t *testing.T) {
	ann, bob, nobody := shim.Share{Owner: "ann"}, shim.Share{Owner: "bob"}, shim.Share{}
	near, far := shim.Share{Address: "192.0.2.1"}, shim.Share{Address: "192.0.2.2"}
	for name, c := range map[string]struct {
		bound  *shim.Bound
		enters []shim.Share
		out    []shim.Share // have no room then
		in     []shim.Share // have room then
	}{
		"strangers":       {&shim.Bound{Most: 8, Halved: true}, slices.Repeat([]shim.Share{nobody}, 4), []shim.Share{nobody, near}, []shim.Share{ann, bob, ann, bob}},
		"all strangers":   {&shim.Bound{Most: 8}, slices.Repeat([]shim.Share{nobody}, 7), nil, []shim.Share{nobody}},
		"address":         {&shim.Bound{Most: 8, Halved: true}, []shim.Share{near, near}, []shim.Share{near}, []shim.Share{far, far, ann, ann, ann, ann}},
		"two addresses":   {&shim.Bound{Most: 8, Halved: true}, []shim.Share{near, near, far, far}, []shim.Share{near, far, nobody}, []shim.Share{ann}},
		"all one address": {&shim.Bound{Most: 8}, []shim.Share{near, near, near, near}, []shim.Share{near}, []shim.Share{far, far, nobody, nobody}},
		"owner":           {&shim.Bound{Most: 8, MostPerOwner: 100}, slices.Repeat([]shim.Share{ann}, 4), []shim.Share{ann}, []shim.Share{bob, nobody, nobody, nobody}},
		"without a whole": {&shim.Bound{MostPerOwner: 2}, []shim.Share{nobody, near, ann, ann}, []shim.Share{nobody, far, ann}, []shim.Share{bob}},
		"any number":      {&shim.Bound{Most: 8}, slices.Repeat([]shim.Share{ann}, 7), nil, []shim.Share{ann}},
	} {
		b := c.bound
		for _, s := range c.enters {
			if err := b.Enter(s); err != nil {
				t.Fatalf("%s: %+v: %v", name, s, err)
			}
		}
		for _, s := range c.out {
			if b.Enter(s) == nil {
				t.Errorf("%s: %+v has more than its share", name, s)
			}
		}
		for _, s := range c.in {
			if err := b.Enter(s); err != nil {
				t.Errorf("%s: %+v: %v", name, s, err)
			}
		}
		for _, s := range slices.Concat(c.enters, c.in) {
			b.Leave(s)
		}
		if b.Count() != 0 || b.Usage() != 0 {
			t.Errorf("%s: %d are left", name, b.Count())
		}
	}
}

// TestUsage: a limit is as full as its fuller part.
func TestUsage(t *testing.T) {
	b := &shim.Bound{Most: 8, Halved: true}
	for range 3 {
		b.Force(shim.Share{Address: "192.0.2.1"})
	}
	b.Force(shim.Share{Owner: "ann"})
	if got := b.Usage(); got != 0.75 {
		t.Errorf("%v of the share of strangers is in use", got)
	}
	for range 3 {
		b.Force(shim.Share{Owner: "bob"})
	}
	if got := b.Usage(); got != 0.875 {
		t.Errorf("%v of all is in use", got)
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
				b.Leave(shim.Share{Owner: "ann"})
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
