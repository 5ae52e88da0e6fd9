package importtest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestWalls tells how many names of each package of the product the others use: functions, types, constants, variables,
// methods and fields. There is no limit: a wall that many names cross is one to look at. The test fails only if the
// table is empty, and prints with -v.
func TestWalls(t *testing.T) {
	crossing := map[string]map[string]bool{} // by "from → to"
	through := map[string]map[string]bool{}  // by the package whose names they are
	for _, from := range product() {
		files := productFiles(t, from)
		if len(files) == 0 {
			continue
		}
		pkg, info := checkTypes(t, files)
		for _, object := range info.Uses {
			if object.Pkg() == nil || object.Pkg() == pkg {
				continue
			}
			if to, inside := strings.CutPrefix(object.Pkg().Path(), module); inside && object.Exported() {
				noteName(crossing, from+" → "+to, object.String())
				noteName(through, to, object.String())
			}
		}
	}
	if len(crossing) < 50 {
		t.Fatalf("found only %d walls", len(crossing))
	}
	var table strings.Builder
	for _, of := range []map[string]map[string]bool{through, crossing} {
		fmt.Fprintln(&table)
		rows := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
			return cmp.Or(len(of[b])-len(of[a]), strings.Compare(a, b))
		})
		for _, row := range rows {
			fmt.Fprintf(&table, "%5d  %s\n", len(of[row]), row)
		}
	}
	t.Log(table.String())
}

// noteName adds a name to those of a wall.
func noteName(walls map[string]map[string]bool, wall, name string) {
	if walls[wall] == nil {
		walls[wall] = map[string]bool{}
	}
	walls[wall][name] = true
}
