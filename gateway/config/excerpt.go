package config

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

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
