package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"taskgate/internal/programtest"
)

// step is from one point of a scenario to the next that a run takes: to every one with
// TASKGATE_WHOLE in the environment, but for the race detector.
func step() int {
	switch {
	case testing.Short():
		return 599
	case raceDetector || !programtest.Whole():
		return 15
	}
	return 1
}

// Every scenario with every fault at every operation, and every event lost: it ends, no
// later than a period after it would have and what the fault itself took; nothing is lost
// and nothing done twice; and no client is told of two ends. One case runs alone with
// -run 'TestFaults/<scenario>/<fault>/<n>$'.
func TestFaults(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			var sound *faultWorld
			synctest.Test(t, func(t *testing.T) { sound = runFaults(t, s, &faults{}, 0) })
			t.Logf("%d operations, %d events, %v", len(sound.ops), len(sound.events), sound.base)
			hit := 0
			for _, k := range kinds {
				if k == clientActs && !s.acts {
					continue
				}
				t.Run(string(k), func(t *testing.T) { everyPoint(t, s, k, sound, &hit) })
			}
		})
	}
}

// everyPoint runs a scenario with a fault of one kind at each point at which that may
// happen, or at each step()-th. hit counts them over all kinds.
func everyPoint(t *testing.T, s scenario, k kind, sound *faultWorld, hit *int) {
	points := sound.ops
	if k == eventLost {
		points = sound.events
	}
	for n, p := range points {
		from := keptFrom(points, n, k)
		if !k.hits(p) || (k == backOne || k == backFour) && !slices.ContainsFunc(points[from:n], changes) {
			continue
		}
		if *hit++; (*hit-1)%step() != 0 {
			continue
		}
		f := faults{kind: k, n: n, from: from}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runFaults(t, s, &f, sound.base) })
		})
	}
}

// changes reports whether an operation may have changed a task: a store that goes back
// behind nothing but others has lost nothing.
func changes(p point) bool { return !p.read && !p.adopts && !strings.HasSuffix(p.name, " Beat") }

// keptFrom is the operation before which the store keeps what it goes back to at the n-th.
func keptFrom(points []point, n int, k kind) int {
	switch k {
	case backOne:
		return max(0, n-1)
	case backFour:
		return max(0, n-4)
	case backLong:
		old := func(p point) bool { return points[n].at-p.at < backBy }
		return max(0, slices.IndexFunc(points[:n], old)-1)
	}
	return 0
}
