package importtest

import (
	"cmp"
	"go/ast"
	"go/build"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// maxCycle is how many files of a package may use each other in a circle: whoever wants to understand
// one of them has to read them all.
const maxCycle = 12

// largeCycles are packages with a larger one.
var largeCycles = map[string]int{
	"cmd/taskgate":   16,
	"gateway/config": 20,
	"gateway/legacy": 25,
	"redisstore":     18,
	"shim":           28,
}

// TestCycles: the files of a package come in groups that can be explained one after the other. A file
// uses another if it names a function, a method, a type, a constant or a variable of it.
func TestCycles(t *testing.T) {
	compiled := exported(t)
	for _, dir := range product() {
		var files []source
		for _, s := range sources(t) {
			if s.dir == dir && !s.test {
				files = append(files, s)
			}
		}
		cycle := largestCycle(uses(t, files, compiled))
		if most := cmp.Or(largeCycles[dir], maxCycle); len(cycle) > most {
			t.Errorf("%s: %d files use each other in a circle, more than %d: %s", dir, len(cycle), most, strings.Join(cycle, ", "))
		}
	}
}

// exported is where the compiler has put what each package exports, by import path.
func exported(t *testing.T) map[string]string {
	t.Helper()
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./cmd/taskgate")
	list.Dir, list.Stderr = "../..", os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[name] = file
	}
	return files
}

// uses are the files that each file of a package uses.
func uses(t *testing.T, files []source, compiled map[string]string) map[string][]string {
	t.Helper()
	var parsed []*ast.File
	for _, s := range files {
		built, err := build.Default.MatchFile(filepath.Join("..", "..", s.dir), path.Base(s.name))
		if err != nil {
			t.Fatal(err)
		}
		if built {
			parsed = append(parsed, s.syntax)
		}
	}
	fset := files[0].fset
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })}
	pkg, err := config.Check(module+files[0].dir, fset, parsed, &info)
	if err != nil {
		t.Fatal(err)
	}
	edges := map[string][]string{}
	for id, object := range info.Uses {
		if f, ok := object.(*types.Func); ok && f.Pkg() == pkg {
			object = f.Origin() // a method, of any type that a generic one stands for
		} else if object.Pkg() != pkg || object.Parent() != pkg.Scope() {
			continue // of another package, or within a function, or a field
		}
		from, to := fileOf(fset, id.Pos()), fileOf(fset, object.Pos())
		if from != to && !slices.Contains(edges[from], to) {
			edges[from] = append(edges[from], to)
		}
	}
	return edges
}

// fileOf is the name of a file without its directory.
func fileOf(fset *token.FileSet, pos token.Pos) string {
	return filepath.Base(fset.Position(pos).Filename)
}

// largestCycle are the files of the largest set of which each can be reached from each (Tarjan).
func largestCycle(edges map[string][]string) (largest []string) {
	index, low, waits := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(file string) {
		index[file] = len(index) + 1
		low[file], waits[file] = index[file], true
		stack = append(stack, file)
		for _, next := range edges[file] {
			if index[next] == 0 {
				visit(next)
				low[file] = min(low[file], low[next])
			} else if waits[next] {
				low[file] = min(low[file], index[next])
			}
		}
		if low[file] < index[file] {
			return
		}
		at := slices.Index(stack, file)
		circle := slices.Clone(stack[at:])
		stack = stack[:at]
		for _, member := range circle {
			waits[member] = false
		}
		if len(circle) > max(len(largest), 1) {
			largest = circle
		}
	}
	for file := range edges {
		if index[file] == 0 {
			visit(file)
		}
	}
	slices.Sort(largest)
	return largest
}

// TestCyclesBite: a circle is found, also behind files that belong to none.
func TestCyclesBite(t *testing.T) {
	found := largestCycle(map[string][]string{
		"a": {"b"}, "b": {"c", "e"}, "c": {"d"}, "d": {"b"}, "e": {"f"}, "f": {"e"},
	})
	if got := strings.Join(found, ""); got != "bcd" {
		t.Errorf("found the circle %q, want bcd", got)
	}
}
