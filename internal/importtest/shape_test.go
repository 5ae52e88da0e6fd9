package importtest

import (
	"cmp"
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

// The limits of a package, a type and an interface, outside of tests.
const (
	maxFiles       = 25 // of a package
	maxMethods     = 40 // of a type
	maxMethodFiles = 12 // in which a type has methods
	maxInterface   = 8  // methods that an interface lists, without those that it embeds
)

// largeInterfaces and largePackages may be larger than others, each for a reason.
var (
	largePackages = map[string]int{
		"gateway/upstream": 40, // one server as seen over HTTP, in two eras that share most of it
	}
	largeInterfaces = map[string]int{
		"shim.Store": 12, // a task is one record: what changes it is one contract
	}
)

// TestShape: a package, a type and an interface stay small enough to be understood whole.
func TestShape(t *testing.T) {
	files, methods := map[string]int{}, map[string]int{}
	spread := map[string]map[string]bool{} // the files in which a type has methods
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		files[s.dir]++
		for _, decl := range s.syntax.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if name := receiver(d); name != "" {
					name = s.dir + "." + name
					methods[name]++
					if spread[name] == nil {
						spread[name] = map[string]bool{}
					}
					spread[name][s.name] = true
				}
			case *ast.GenDecl:
				for name, n := range interfaces(d) {
					if most := cmp.Or(largeInterfaces[s.dir+"."+name], maxInterface); n > most {
						t.Errorf("%s: the interface %s lists %d methods, more than %d", s.name, name, n, most)
					}
				}
			}
		}
	}
	for dir, n := range files {
		if most := cmp.Or(largePackages[dir], maxFiles); n > most {
			t.Errorf("%s has %d files, more than %d", dir, n, most)
		}
	}
	for name, n := range methods {
		if in := len(spread[name]); n > maxMethods || in > maxMethodFiles {
			t.Errorf("%s has %d methods in %d files, more than %d in %d", name, n, in, maxMethods, maxMethodFiles)
		}
	}
}

// receiver names the type that a function is a method of; "" for none.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	e := f.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// interfaces are how many methods each interface of a declaration lists.
func interfaces(d *ast.GenDecl) map[string]int {
	all := map[string]int{}
	for _, spec := range d.Specs {
		ts, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		it, ok := ts.Type.(*ast.InterfaceType)
		if !ok {
			continue
		}
		for _, m := range it.Methods.List {
			all[ts.Name.Name] += len(m.Names) // none for an embedded one
		}
	}
	return all
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
func exportedReceiver(f *ast.FuncDecl) bool { return f.Recv == nil || ast.IsExported(receiver(f)) }

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
