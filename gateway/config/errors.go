package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Error is one mistake in a configuration.
type Error struct {
	File    string // the file as named by the caller; empty if there is none
	Line    int    // counted from 1; 0 for a mistake without a place in a file
	Column  int    // in characters, counted from 1
	Path    string // the key concerned, like upstreams[0].tools[2].ttl; may be empty
	Message string // what is wrong, and what would be right; without secrets
	Source  string // the line of the file with its variables, without possible secrets; may be empty
}

// Error returns FILE:LINE:COLUMN: message, followed by the line and a caret below the column.
// Without a file it is the key and the message.
func (e *Error) Error() string {
	if e.Line == 0 {
		return strings.TrimPrefix(e.Path+": "+e.Message, ": ")
	}
	head := fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Message)
	if e.Source == "" {
		return head
	}
	text, pad := cutExcerpt(e.Source, e.Column)
	return head + "\n    " + text + "\n    " + pad + "^"
}

// cutExcerpt cuts a very long line down to the part around the column, and returns the text before
// the caret as pad. Tabs stay tabs, so that the caret stands below its column at any tab width.
func cutExcerpt(line string, column int) (text, pad string) {
	const before, width = 100, 160
	r := []rune(line)
	at := min(max(column-1, 0), len(r))
	start := max(0, at-before)
	cut := r[start:min(len(r), start+width)]
	pad = strings.Map(func(c rune) rune {
		if c == '\t' {
			return c
		}
		return ' '
	}, string(r[start:at]))
	return string(cut), pad
}

// asError joins the mistakes in the order of the file, and drops repetitions, which an anchor used twice
// would cause. Without mistakes it returns nil.
func asError(list []*Error) error {
	slices.SortStableFunc(list, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	list = slices.CompactFunc(list, func(a, b *Error) bool {
		return a.Line > 0 && a.Line == b.Line && a.Column == b.Column && a.Message == b.Message
	})
	all := make([]error, len(list))
	for i, one := range list {
		all[i] = one
	}
	return errors.Join(all...)
}

// problem is a mistake in the meaning of a configuration, as opposed to its syntax. The first path
// is the key at fault; the others are keys that it depends on, and the places to show if the file
// leaves the first one out.
type problem struct {
	paths   []string
	message string
	onKey   bool // the key itself is at fault
}

type problems []problem

func (p *problems) add(path, format string, args ...any) {
	p.addFor([]string{path}, format, args...)
}

func (p *problems) addFor(paths []string, format string, args ...any) {
	*p = append(*p, problem{paths: paths, message: fmt.Sprintf(format, args...)})
}

func (p *problems) addKey(path, format string, args ...any) {
	*p = append(*p, problem{paths: []string{path}, message: fmt.Sprintf(format, args...), onKey: true})
}
