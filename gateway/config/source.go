package config

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// source is a file that is read: its text, the places of its keys, and the mistakes found so far.
type source struct {
	name  string
	lines []string
	at    map[string]place    // by the path of the key
	bad   map[string]bool     // paths that already have a mistake
	plain map[*yaml.Node]bool // true for what cannot be a secret: known keys, and most of their values
	list  []*Error
}

// place is where a key of the file stands. Entries of lists have no key.
type place struct{ key, value *yaml.Node }

func newSource(name string, data []byte) *source {
	text := strings.TrimPrefix(string(data), "\ufeff")
	return &source{
		name:  name,
		lines: strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n"),
		at:    map[string]place{},
		bad:   map[string]bool{},
		plain: map[*yaml.Node]bool{},
	}
}

// lineAt returns a line of the file, counted from 1.
func (s *source) lineAt(n int) string {
	if n < 1 || n > len(s.lines) {
		return ""
	}
	return s.lines[n-1]
}

// addMistake reports a mistake at a position.
func (s *source) addMistake(line, column int, path, message string) {
	if path != "" {
		s.bad[path] = true
	}
	s.list = append(s.list, &Error{
		File: s.name, Line: max(line, 1), Column: max(column, 1),
		Path: path, Message: message,
	})
}

// addAt reports a mistake at a node.
func (s *source) addAt(n *yaml.Node, path, message string) {
	s.addMistake(n.Line, n.Column, path, message)
}

// addProblem reports a result of Validate, unless it follows from a reported mistake: an unreadable
// value is not also missing.
func (s *source) addProblem(p problem) {
	for _, path := range p.paths {
		if s.isBad(path) {
			return
		}
	}
	where := s.findPlace(p.paths)
	line, column := where.bestPosition()
	if p.onKey && where.key != nil {
		line, column = where.key.Line, where.key.Column
	}
	s.addMistake(line, column, p.paths[0], p.message)
}

// isBad reports whether the path, or a key around it, has a mistake.
func (s *source) isBad(path string) bool {
	for ; path != ""; path = parentPath(path) {
		if s.bad[path] {
			return true
		}
	}
	return false
}

// findPlace returns where to show a problem: the first of the paths that the file has, else the
// nearest key around the first path.
func (s *source) findPlace(paths []string) place {
	for _, path := range paths {
		if p, ok := s.at[path]; ok {
			return p
		}
	}
	for path := paths[0]; path != ""; path = parentPath(path) {
		if p, ok := s.at[path]; ok {
			return p
		}
	}
	return place{value: &yaml.Node{Line: 1, Column: 1}}
}

// bestPosition is that of a value on the line of its key, and else that of the key.
func (p place) bestPosition() (line, column int) {
	if p.key != nil && (p.value.Kind != yaml.ScalarNode || p.value.Line != p.key.Line || isNull(p.value)) {
		return p.key.Line, p.key.Column
	}
	return p.value.Line, p.value.Column
}

func parentPath(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// parseDocument parses the file's one document; a second one is a mistake. It returns nil for an empty file, and
// for one with a syntax error, which is then the only mistake.
func (s *source) parseDocument(data []byte) *yaml.Node {
	var first, second yaml.Node
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err == nil {
		err = loader.Load(&first)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		if err = loader.Load(&second); err == nil {
			s.addAt(&second, "", "a second document begins here; a configuration is one document")
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.addSyntax(err)
		return nil
	}
	return first.Content[0]
}

// addSyntax reports a syntax error.
func (s *source) addSyntax(err error) {
	bad, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		s.addMistake(1, 1, "", err.Error())
		return
	}
	at := bad.Mark
	if bad.ContextMark.Line > 0 && at.Line >= len(s.lines) {
		// An unclosed bracket or quote is noticed at the end of the file; the reader wants to know
		// where it was opened.
		at = bad.ContextMark
	}
	s.addMistake(at.Line, at.Column, "", s.syntaxMessage(bad))
}

// syntaxMessage puts the parser's words into one sentence.
func (s *source) syntaxMessage(e *yaml.LoadError) string {
	message := "not YAML: " + e.Message
	switch {
	case e.ContextMsg == "":
	case e.ContextMark.Line == e.Mark.Line:
		message += " (" + e.ContextMsg + ")"
	default:
		message += " (" + e.ContextMsg + ", begun on line " + strconv.Itoa(e.ContextMark.Line) + ")"
	}
	if line := s.lineAt(e.Mark.Line); strings.ContainsRune(line[:len(line)-len(strings.TrimLeft(line, " \t"))], '\t') {
		message += "; indent with spaces, not with tabs"
	}
	return message
}
