package importtest

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fence is a rule on one package, or a tree of packages, from outside of the
// module.
type fence struct {
	path    string
	allowed []string // the packages whose programs may import it
	tests   []string // if not nil, the only packages whose tests may
	why     string
}

func (f fence) covers(imported string) bool {
	return imported == f.path || strings.HasPrefix(imported, f.path+"/") || strings.HasPrefix(imported, f.path+".")
}

// permits says whether a file may import the package behind the fence.
func (f fence) permits(s source) bool {
	if slices.Contains(f.allowed, s.dir) {
		return true
	}
	return s.test && (f.tests == nil || slices.Contains(f.tests, s.dir))
}

func TestImportsInsideTheModule(t *testing.T) {
	for _, s := range sources(t) {
		allowed, known := imports[s.dir]
		if !known {
			t.Errorf("%s: the package %s is not in the table; add it there", s.name, s.dir)
			continue
		}
		for _, imported := range s.imported() {
			inside, ok := strings.CutPrefix(imported, module)
			if !ok || s.test || slices.Contains(allowed, inside) {
				continue
			}
			t.Errorf("%s: %s must not import %s", s.name, s.dir, inside)
		}
	}
}

// product are the packages that are part of the program, by the table.
func product() []string {
	all := []string{"cmd/taskgate"}
	for i := 0; i < len(all); i++ {
		for _, imported := range imports[all[i]] {
			if !slices.Contains(all, imported) {
				all = append(all, imported)
			}
		}
	}
	return all
}

// Code that only tests need must not become part of the product.
func TestProductDoesNotImportTestCode(t *testing.T) {
	for _, dir := range product() {
		if strings.HasSuffix(dir, "test") || strings.HasPrefix(dir, "examples/") || strings.Contains(dir, "test/") {
			t.Errorf("the table lets the program import %s", dir)
		}
	}
}

func TestTableIsCurrent(t *testing.T) {
	used := map[string]map[string]bool{} // what a package imports outside of its tests
	for _, s := range sources(t) {
		if used[s.dir] == nil {
			used[s.dir] = map[string]bool{}
		}
		for _, imported := range s.imported() {
			if inside, ok := strings.CutPrefix(imported, module); ok && !strings.HasSuffix(s.name, "_test.go") {
				used[s.dir][inside] = true
			}
		}
	}
	for dir, allowed := range imports {
		if used[dir] == nil {
			t.Errorf("the table has %s, which does not exist", dir)
		}
		for _, inside := range allowed {
			if used[dir] != nil && !used[dir][inside] {
				t.Errorf("the table lets %s import %s, which it does not", dir, inside)
			}
		}
	}
}

func TestFences(t *testing.T) {
	for _, s := range sources(t) {
		for _, imported := range s.imported() {
			for _, f := range fences {
				if f.covers(imported) && !f.permits(s) {
					t.Errorf("%s: %s must not import %s: %s", s.name, s.dir, imported, f.why)
				}
			}
		}
	}
}

// The engine is meant to be used by others too, so it brings next to nothing.
func TestShimImportsLittle(t *testing.T) {
	for _, s := range sources(t) {
		if !slices.Contains([]string{"shim", "shim/node", "shim/runner", "shim/engine"}, s.dir) || s.test {
			continue
		}
		for _, imported := range s.imported() {
			if external(imported) && !slices.ContainsFunc(shimImports, func(p string) bool {
				return imported == p || strings.HasPrefix(imported, p+"/")
			}) {
				t.Errorf("%s: %s must not import %s", s.name, s.dir, imported)
			}
		}
	}
}

// external reports whether an import is neither of the module nor of the
// standard library, whose paths have no dot in the first element.
func external(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return strings.Contains(first, ".")
}

func TestNobodySleeps(t *testing.T) {
	for _, s := range sources(t) {
		s.uses("time", "Sleep", func(n ast.Node) {
			t.Errorf("%s:%d: time.Sleep; wait for what is waited for", s.name, s.line(n))
		})
	}
}

func TestDetachedContextsAreListed(t *testing.T) {
	found := map[string]int{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		s.uses("context", "WithoutCancel", func(ast.Node) { found[s.name]++ })
	}
	for name, n := range found {
		if withoutCancel[name].uses != n {
			t.Errorf("%s: %d uses of context.WithoutCancel, %d listed", name, n, withoutCancel[name].uses)
		}
	}
	for name := range withoutCancel {
		if found[name] == 0 {
			t.Errorf("%s is listed for context.WithoutCancel and has none", name)
		}
	}
}

// logs are the methods that take attributes of a record of the log.
var logs = regexp.MustCompile(`^(With|Log|log(Task|Run)|(Debug|Info|Warn|Error)(Context)?)$`)

// calledError calls found for each error that the log has by another name than "err".
func (s source) calledError(found func(ast.Node)) {
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		call, _ := n.(*ast.CallExpr)
		if call == nil || len(call.Args) == 0 {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && logs.MatchString(sel.Sel.Name) {
			for _, arg := range call.Args[1:] {
				if lit, ok := arg.(*ast.BasicLit); ok && lit.Value == `"error"` {
					found(lit)
				}
			}
		}
		return true
	})
}

// Whoever searches the log for errors looks for one name.
func TestErrorsHaveOneNameInTheLog(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test {
			s.calledError(func(n ast.Node) {
				t.Errorf("%s:%d: an attribute \"error\"; it is \"err\" in the log", s.name, s.line(n))
			})
		}
	}
}
