package importtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// sourceOf is a file as the rules see it.
func sourceOf(t *testing.T, name, text string) source {
	t.Helper()
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return source{name: name, dir: "shim", fset: fset, syntax: syntax}
}

// The rules find what they are for: a rule that finds nothing would pass as well.
func TestRulesBite(t *testing.T) {
	s := sourceOf(t, "a.go", `package a

import (
	clock "time"
	"net/http/httputil"
)

type Bare struct{}

// Group of names.
const (
	One = 1
	Two = 2
)

var (
	Three = 3 // has one
	Four  = 4
)

func f() { clock.Sleep(clock.Second); _ = httputil.ErrLineTooLong }

func g() { log.Warn("error", "error", err); json.Get(b, "error"); log.Debug("x", "err", err) }
`)
	slept := 0
	s.uses("time", "Sleep", func(ast.Node) { slept++ })
	if slept != 1 {
		t.Errorf("%d sleeps found under another name", slept)
	}
	called := 0
	if s.calledError(func(ast.Node) { called++ }); called != 1 {
		t.Errorf("%d errors found in the log", called)
	}
	var bare []string
	for _, decl := range s.syntax.Decls {
		if d, ok := decl.(*ast.GenDecl); ok {
			for _, name := range undocumented(d) {
				bare = append(bare, name.Name)
			}
		}
	}
	if !slices.Equal(bare, []string{"Bare", "Four"}) {
		t.Errorf("without comment: %q", bare)
	}
	f := fence{path: "net/http", allowed: []string{"gateway"}}
	if !slices.ContainsFunc(s.imported(), f.covers) || f.permits(s) {
		t.Error("the fence is open")
	}
	s.test = true
	if !f.permits(s) {
		t.Error("the fence is closed for tests")
	}
	f.tests = []string{"gateway"}
	if f.permits(s) {
		t.Error("the fence is open for tests of other packages")
	}
	if f.covers("net/httpx") || !f.covers("net/http") {
		t.Error("the fence is in the wrong place")
	}
	if external("net/http") || external("taskgate/shim") || !external("golang.org/x/sync") {
		t.Error("external")
	}
}
