package importtest

import (
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// watches are the iterators that wait for events of the store.
var watches = []string{"Watch", "Inbox", "watch"}

// lastName is the name at the end of x, y.x or x(), or of the type *x or x[T].
func lastName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.CallExpr:
		return lastName(x.Fun)
	case *ast.StarExpr:
		return lastName(x.X)
	case *ast.IndexExpr:
		return lastName(x.X)
	}
	return ""
}

// channels are the names that a declaration has for channels: its fields, parameters and
// variables.
func channels(decl ast.Node) map[string]bool {
	names := make(map[string]bool)
	ast.Inspect(decl, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if _, ok := n.Type.(*ast.ChanType); ok {
				for _, name := range n.Names {
					names[name.Name] = true
				}
			}
		case *ast.AssignStmt:
			for i, x := range n.Rhs {
				if call, ok := x.(*ast.CallExpr); ok && lastName(call) == "make" {
					_, made := call.Args[0].(*ast.ChanType)
					names[lastName(n.Lhs[i])] = made
				}
			}
		}
		return true
	})
	return names
}

// blocks reports whether a function waits: in a select without default, by a send or a
// receive outside of a select, by a method called Wait, or by a range over a channel or
// over the events of the store. fields and locals are the names of channels.
func blocks(body ast.Node, fields, locals map[string]bool) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectStmt:
			hasDefault := false
			for _, c := range n.Body.List { // what is in the head of a case waits with the select
				clause := c.(*ast.CommClause)
				hasDefault = hasDefault || clause.Comm == nil
				found = found || blocks(&ast.BlockStmt{List: clause.Body}, fields, locals)
			}
			found = found || !hasDefault
			return false
		case *ast.UnaryExpr:
			found = found || n.Op == token.ARROW
		case *ast.SendStmt:
			found = true
		case *ast.CallExpr:
			_, method := n.Fun.(*ast.SelectorExpr)
			found = found || method && lastName(n) == "Wait"
		case *ast.RangeStmt:
			switch n.X.(type) {
			case *ast.CallExpr:
				found = found || slices.Contains(watches, lastName(n.X))
			case *ast.SelectorExpr:
				found = found || fields[lastName(n.X)]
			case *ast.Ident:
				found = found || locals[lastName(n.X)]
			}
		}
		return !found
	})
	return found
}

// waitsIn are the functions of a package that wait, each with its file, as docs/waits.md
// spells them.
func waitsIn(files []source) (names []string) {
	fields := make(map[string]bool)
	for _, s := range files {
		for _, decl := range s.syntax.Decls {
			if d, ok := decl.(*ast.GenDecl); ok {
				maps.Copy(fields, channels(d))
			}
		}
	}
	for _, s := range files {
		for _, decl := range s.syntax.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Body != nil && blocks(f.Body, fields, channels(f)) {
				name := f.Name.Name
				if f.Recv != nil {
					name = lastName(f.Recv.List[0].Type) + "." + name
				}
				names = append(names, "`"+name+"` ("+strings.TrimPrefix(s.name, s.dir+"/")+")")
			}
		}
	}
	return names
}

var listedWait = regexp.MustCompile("`[\\w.]+` \\(\\w+\\.go\\)")

// docs/waits.md says of each function that waits who wakes it and what happens if that is
// lost, under the heading of its package; and of no other.
func TestWaitsAreListed(t *testing.T) {
	page := textOf(t, root+"/docs/waits.md")
	for _, dir := range product() {
		var listed []string
		_, section, _ := strings.Cut(page, "\n## "+dir+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for line := range strings.Lines(section) {
			if cells := strings.Split(line, "|"); len(cells) > 1 {
				listed = append(listed, listedWait.FindAllString(cells[1], -1)...)
			}
		}
		found := waitsIn(slices.DeleteFunc(slices.Clone(sources(t)), func(s source) bool { return s.dir != dir || s.test }))
		for _, name := range found {
			if !slices.Contains(listed, name) {
				t.Errorf("%s: %s waits, and has no row in docs/waits.md: write there who wakes it, what happens if that is lost, and after how long it looks by itself", dir, name)
			}
		}
		for i, name := range listed {
			if !slices.Contains(found, name) || slices.Contains(listed[:i], name) {
				t.Errorf("%s: %s in docs/waits.md does not wait (any more, or in that file), or is there twice: take it out", dir, name)
			}
		}
	}
}
