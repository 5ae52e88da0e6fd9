package importtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "taskgate/"

// source is one Go file of the module.
type source struct {
	name   string // relative to the root, with slashes
	dir    string // its package's directory
	test   bool
	fset   *token.FileSet
	syntax *ast.File
}

// imported lists the paths of its imports.
func (s source) imported() []string {
	var list []string
	for _, spec := range s.syntax.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // it was parsed
		}
		list = append(list, p)
	}
	return list
}

// line is where a node begins.
func (s source) line(n ast.Node) int { return s.fset.Position(n.Pos()).Line }

// sources are all Go files of the module.
func sources(t *testing.T) []source {
	t.Helper()
	files, err := parseAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("found only %d files; this is not the module", len(files))
	}
	return files
}

var parseAll = sync.OnceValues(func() ([]source, error) {
	root := filepath.Join("..", "..")
	fset := token.NewFileSet()
	var files []source
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && skipped(entry.Name()):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, ".go"):
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		slashed := filepath.ToSlash(rel)
		syntax, err := parser.ParseFile(fset, slashed, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files = append(files, source{
			name: slashed, dir: path.Dir(slashed), test: strings.HasSuffix(slashed, "_test.go"),
			fset: fset, syntax: syntax,
		})
		return nil
	})
	return files, err
})

// skipped are directories without Go code of the module.
func skipped(dir string) bool {
	return dir == "testdata" || dir == "node_modules" || dir == "bin" || len(dir) > 2 && dir[0] == '.'
}

// uses calls found for each use of the selector name of the package with the
// given import path.
func (s source) uses(importPath, name string, found func(ast.Node)) {
	local := ""
	for _, spec := range s.syntax.Imports {
		if p, _ := strconv.Unquote(spec.Path.Value); p == importPath {
			local = path.Base(importPath)
			if spec.Name != nil {
				local = spec.Name.Name
			}
		}
	}
	if local == "" {
		return
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local {
				found(n)
			}
		}
		return true
	})
}
