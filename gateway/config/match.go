package config

import (
	"path"
	"strings"

	"taskgate/shim"
)

// Truth is true or false, or not given.
type Truth string

// The values of a truth.
const (
	True  Truth = "true"
	False Truth = "false"
)

// Values lists the values in the order of the manual.
func (Truth) Values() []string { return []string{"true", "false"} }

// admitsFact reports whether a fact is as wanted; anything is where nothing is given.
func (t Truth) admitsFact(is bool) bool { return t == "" || (t == True) == is }

// Match says which tools a rule is for: those that fit all that is given. The annotations are what the server says of a
// tool. Where it says nothing, or its tools could not be listed in time, the defaults of MCP hold, which are the careful
// ones: the tool is not read-only, destroys, is not idempotent, and has an open world.
type Match struct {
	// Name is a glob on the tool's name: * stands for any characters, ? for
	// one, [a-z] for one of a range, [^a-z] for one outside it, and \ takes the
	// next one literally. Without it any name fits.
	Name string `yaml:"name"`

	// ReadOnly fits tools that only read (readOnlyHint), or the others.
	ReadOnly Truth `yaml:"read_only"`

	// Destructive fits tools that may delete or overwrite something (destructiveHint), or the others.
	// A tool that only reads destroys nothing.
	Destructive Truth `yaml:"destructive"`

	// Idempotent fits tools of which a second call with the same arguments changes nothing more
	// (idempotentHint), or the others. A tool that only reads is one.
	Idempotent Truth `yaml:"idempotent"`

	// OpenWorld fits tools that deal with others, such as a search of the web (openWorldHint), or
	// those that stay within the server's own domain.
	OpenWorld Truth `yaml:"open_world"`
}

// ByName returns the match of a glob on the tool's name.
func ByName(glob string) Match { return Match{Name: glob} }

// UsesHints reports whether the match asks for annotations.
func (m Match) UsesHints() bool { return m != ByName(m.Name) }

// IsName reports whether the match is for a single tool, whatever its annotations.
func (m Match) IsName() bool { return !m.UsesHints() && m.Name != "" && !hasMeta(m.Name) }

// String is the match in one line.
func (m Match) String() string {
	if !m.UsesHints() {
		return m.Name
	}
	var parts []string
	for _, p := range []struct{ name, value string }{
		{"name", m.Name}, {"read_only", string(m.ReadOnly)}, {"destructive", string(m.Destructive)}, {"idempotent", string(m.Idempotent)}, {"open_world", string(m.OpenWorld)},
	} {
		if p.value != "" {
			parts = append(parts, p.name+": "+p.value)
		}
	}
	return strings.Join(parts, ", ")
}

// Fits reports whether a tool fits, by its name and what the server says of it.
func (m Match) Fits(name string, says shim.Hints) bool {
	return (m.Name == "" || globMatches(m.Name, name)) &&
		m.ReadOnly.admitsFact(says.ReadOnly) && m.Destructive.admitsFact(!says.Additive) && m.Idempotent.admitsFact(says.Idempotent) && m.OpenWorld.admitsFact(!says.Closed)
}

// coversMatch reports whether the match certainly fits all tools that a later one fits.
func (m Match) coversMatch(later Match) bool {
	wider := func(m, later Truth) bool { return m == "" || m == later }
	return (m.Name == "" || globCovers(m.Name, later.Name)) &&
		wider(m.ReadOnly, later.ReadOnly) && wider(m.Destructive, later.Destructive) && wider(m.Idempotent, later.Idempotent) && wider(m.OpenWorld, later.OpenWorld)
}

// checkMatch checks what a rule is for, and reports whether it can be compared with others.
func checkMatch(p *problems, at string, m Match) bool {
	p.checkFields(at, &m)
	if m == (Match{}) {
		p.add(at, "match is required")
		return false
	}
	if _, err := path.Match(m.Name, ""); err != nil {
		p.addFor([]string{at + ".name", at}, "not a glob: a [ is not closed, a range is empty or \\ ends it")
		return false
	}
	return true
}

// globMatches reports whether the glob covers the name. In path.Match a * stops at /; in the name of
// a tool / is a character like any other, so both sides replace it by one that names do not contain.
func globMatches(glob, name string) bool {
	ok, err := path.Match(plainSlash(glob), plainSlash(name))
	return ok && err == nil
}

func plainSlash(s string) string { return strings.ReplaceAll(s, "/", "\x00") }

// globCovers reports whether the earlier glob certainly matches all names that the later one
// matches. It knows equal globs, plain names, and globs of the form prefix*.
func globCovers(earlier, later string) bool {
	if earlier == later || later != "" && !hasMeta(later) && globMatches(earlier, later) {
		return true
	}
	prefix, star := strings.CutSuffix(earlier, "*")
	return star && !hasMeta(prefix) && strings.HasPrefix(later, prefix)
}

func hasMeta(glob string) bool { return strings.ContainsAny(glob, `*?[\`) }
