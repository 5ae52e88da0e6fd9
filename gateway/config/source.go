package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
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

// secretPath are the keys whose values may hold a credential. The hash of a key is one as well: its
// place may hold the key itself.
var secretPath = regexp.MustCompile(`^store$|\.url$|\.headers\.|\.env\.|\.args\[|\.jwks_url$|\.issuer$|^state_keys\[|\.client_secret$|\.keys\[`)

// noteScalar notes a scalar at a key of the configuration, or that key. A mistake shows it unless
// it may hold a credential.
func (s *source) noteScalar(n *yaml.Node, path string) {
	if secretPath.MatchString(path) {
		s.plain[n] = false // also for an alias elsewhere
	} else if _, known := s.plain[n]; !known {
		s.plain[n] = true
	}
}

// addExcerpts adds their lines to the mistakes, with asterisks for possible credentials. The value
// of an unknown key may be one, and so may a comment. A line without known scalars is left out: it
// is outside of the parsed part, or goes on with something from above.
func (s *source) addExcerpts(root *yaml.Node) {
	lines := map[int][]*yaml.Node{}
	collectScalars(root, lines)
	for _, e := range s.list {
		if nodes := lines[e.Line]; len(nodes) > 0 {
			e.Source = s.maskLine(e.Line, nodes)
		}
	}
}

// collectScalars sorts the scalars and aliases of a tree by the line that they begin on.
func collectScalars(n *yaml.Node, lines map[int][]*yaml.Node) {
	if n == nil {
		return
	}
	if n.Kind == yaml.ScalarNode || n.Kind == yaml.AliasNode {
		lines[n.Line] = append(lines[n.Line], n)
	}
	for _, c := range n.Content {
		collectScalars(c, lines)
	}
}

// maskLine is a line with the scalars that begin on it, in order. Each lasts until the next one.
func (s *source) maskLine(line int, nodes []*yaml.Node) string {
	text := []rune(s.lineAt(line))
	column := func(i int) int {
		if i == len(nodes) {
			return len(text)
		}
		return min(max(nodes[i].Column-1, 0), len(text))
	}
	if before := text[:column(0)]; strings.Trim(string(before), " \t-{[") != "" {
		maskText(before) // the end of a scalar from above
	}
	for i, n := range nodes {
		part := text[column(i):max(column(i), column(i+1))]
		switch comment := slices.Index(part, '#'); {
		case !s.plain[n] && !isNull(n) && n.Kind != yaml.AliasNode && n.Tag != "!!merge":
			maskText(part)
		case comment >= 0:
			maskText(part[comment:])
		}
	}
	return string(text)
}

func maskText(text []rune) {
	for i, c := range text {
		if c != ' ' && c != '\t' {
			text[i] = '*'
		}
	}
}
