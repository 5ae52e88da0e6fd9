package importtest

import (
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
	"sync"
	"testing"
)

// layers are groups of the files of a package. A file uses those of its own group, and of the groups
// before it.
var layers = map[string][]string{
	"gateway/legacy": {
		"replay session session_ask session_get session_listen session_live session_log session_partials session_question session_review session_stream session_table session_tasks",
		"handler ask initialize modes offers relay request resume session_enter state task_result tasks",
	},
	"gateway/upstream": {
		"doc config errors server verdict memory roots listeners checkpoint numbers", // values
		"wire silence",
		"exchange request calls notify questions resume trace task task_await task_poll",                // one request
		"session_table session initialize shared get_stream keep_stream listen_legacy session_question", // the legacy era
		"client era tools again legacy modern job listen admit",
	},
}

// TestLayers: the groups are apart as far as the list says, and name each file.
func TestLayers(t *testing.T) {
	for dir, groups := range layers {
		layer := map[string]int{}
		for i, group := range groups {
			for _, name := range strings.Fields(group) {
				layer[name+".go"] = i + 1
			}
		}
		files := productFiles(t, dir)
		for _, s := range files {
			if layer[path.Base(s.name)] == 0 {
				t.Errorf("%s is in no group of %s", s.name, dir)
			}
		}
		for from, used := range uses(t, files) {
			for _, to := range used {
				if layer[from] < layer[to] {
					t.Errorf("%s: %s must not use %s, which is in a later group", dir, from, to)
				}
			}
		}
	}
}

// productFiles are the files of a package without its tests.
func productFiles(t *testing.T, dir string) []source {
	t.Helper()
	return slices.DeleteFunc(slices.Clone(sources(t)), func(s source) bool { return s.dir != dir || s.test })
}

// compiled imports what packages export, each once, from where the compiler has put it.
var compiled = sync.OnceValues(func() (types.Importer, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", "./cmd/taskgate")
	list.Dir, list.Stderr = "../..", os.Stderr
	out, err := list.Output()
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		files[name] = file
	}
	open := func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
	return importer.ForCompiler(token.NewFileSet(), "gc", open), err
})

// checkTypes resolves the names in a package's files.
func checkTypes(t *testing.T, files []source) (*types.Package, *types.Info) {
	t.Helper()
	imported, err := compiled()
	if err != nil {
		t.Fatal(err)
	}
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
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: imported}
	pkg, err := config.Check(module+files[0].dir, files[0].fset, parsed, info)
	if err != nil {
		t.Fatal(err)
	}
	return pkg, info
}

// uses are the files that each file of a package uses: it names a function, a method, a type, a constant or a
// variable of them.
func uses(t *testing.T, files []source) map[string][]string {
	t.Helper()
	fset := files[0].fset
	pkg, info := checkTypes(t, files)
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
