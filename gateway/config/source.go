package config

import (
	"bytes"
	"errors"
	"io"
	"slices"
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

// hasPath reports whether the file itself has a value at one of the paths.
func (s *source) hasPath(paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { at, ok := s.at[p]; return ok && !isNull(at.value) })
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

// parseDocument parses the file's one document. A syntax error ends the tree, but the part before
// it is returned all the same, so that its mistakes are reported in the same round; whole says
// whether the tree is the whole file.
func (s *source) parseDocument(data []byte) (root *yaml.Node, whole bool) {
	root, err := s.parseOne(data)
	if err == nil {
		return root, true
	}
	var bad *yaml.LoadError
	if !errors.As(err, &bad) {
		s.addMistake(1, 1, "", err.Error())
		return nil, false
	}
	at, opened := bad.Mark, bad.ContextMark
	if opened.Line > 0 && at.Line >= len(s.lines) {
		// An unclosed bracket or quote is noticed at the end of the file; the reader wants to know
		// where it was opened.
		at = opened
	}
	s.addMistake(at.Line, at.Column, "", s.syntaxMessage(bad))
	return s.parseBefore(data, bad.Mark.Line, opened.Line), false
}

// parseOne reads one document. A second one is a mistake.
func (s *source) parseOne(data []byte) (*yaml.Node, error) {
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var first, second yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch err := loader.Load(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		return nil, err
	default:
		s.addAt(&second, "", "a second document begins here; a configuration is one document")
	}
	return first.Content[0], nil
}

// parseBefore returns the tree of the lines above a syntax error; nil if they cannot be parsed
// alone either.
func (s *source) parseBefore(data []byte, lines ...int) *yaml.Node {
	for _, line := range lines {
		if line < 2 {
			continue
		}
		head := bytes.Join(bytes.SplitAfter(data, []byte("\n"))[:min(line, len(s.lines))-1], nil)
		quiet := &source{}
		if root, err := quiet.parseOne(head); err == nil && len(quiet.list) == 0 {
			return root
		}
	}
	return nil
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
