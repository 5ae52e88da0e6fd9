package importtest

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// The limits of a file and of a function, in lines, outside of tests.
const (
	maxFile     = 500
	maxFunction = 80
)

func TestSizes(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		if n := s.fset.Position(s.syntax.FileEnd).Line; n > maxFile {
			t.Errorf("%s has %d lines, more than %d", s.name, n, maxFile)
		}
		for _, decl := range s.syntax.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := s.fset.Position(f.End()).Line - s.line(f.Name) + 1; n > maxFunction {
				t.Errorf("%s:%d: %s has %d lines, more than %d", s.name, s.line(f.Name), f.Name.Name, n, maxFunction)
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	described, seen := map[string]int{}, map[string]bool{}
	for _, s := range sources(t) {
		if strings.HasSuffix(s.syntax.Name.Name, "_test") {
			continue
		}
		seen[s.dir] = true
		if s.syntax.Doc != nil {
			described[s.dir]++
		}
	}
	for dir := range seen {
		if described[dir] != 1 {
			t.Errorf("%s has %d package comments, want one", dir, described[dir])
		}
	}
}

func TestDocComments(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, decl := range s.syntax.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil {
					t.Errorf("%s:%d: %s has no doc comment", s.name, s.line(d), d.Name.Name)
				}
			case *ast.GenDecl:
				for _, name := range undocumented(d) {
					t.Errorf("%s:%d: %s has no doc comment", s.name, s.line(name), name.Name)
				}
			}
		}
	}
}

// exportedReceiver reports whether a function is none of a type that nobody
// outside can name.
func exportedReceiver(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

// undocumented lists the exported names of a declaration that neither have a
// comment nor are in a group that has one.
func undocumented(d *ast.GenDecl) []*ast.Ident {
	if d.Tok == token.IMPORT {
		return nil
	}
	var names []*ast.Ident
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
				names = append(names, s.Name)
			}
		case *ast.ValueSpec:
			if s.Doc != nil || s.Comment != nil || d.Doc != nil {
				continue
			}
			for _, name := range s.Names {
				if name.IsExported() {
					names = append(names, name)
				}
			}
		}
	}
	return names
}
