package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// counts are numbers by what they count.
type counts map[string]int

// String lists them, one per line.
func (c counts) String() string {
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "  %6d  %s\n", c[what], what)
	}
	return b.String()
}

// tally is counts for many goroutines.
type tally struct {
	mu sync.Mutex
	counts
}

func newTally() *tally { return &tally{counts: counts{}} }

func (t *tally) add(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[what]++
}

// String lists them.
func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts.String()
}
