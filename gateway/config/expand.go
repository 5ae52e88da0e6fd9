package config

import (
	"fmt"
	"regexp"
	"strings"
)

// lookup finds an environment variable; os.LookupEnv is one.
type lookup func(name string) (value string, set bool)

// variable is the form of the text between the braces.
var variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)(:-(.*))?$`)

// expandValue replaces ${NAME}, ${NAME:-default}, ${file:PATH} and $$ in a value; relative paths begin at
// dir. Replaced text is final. It reports all mistakes; they name variables and files, and keep the
// values secret.
func expandValue(s string, env lookup, dir string) (value string, mistakes []string) {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			b.WriteString(s)
			return b.String(), mistakes
		}
		b.WriteString(s[:i])
		s = s[i:]
		switch s[1] {
		case '$':
			b.WriteByte('$')
			s = s[2:]
		case '{':
			inner, rest, closed := strings.Cut(s[2:], "}")
			if !closed {
				return "", append(mistakes, "${ without }; write $$ for a dollar sign")
			}
			v, mistake := replaceVariable(inner, env, dir)
			b.WriteString(v)
			if mistake != "" {
				mistakes = append(mistakes, mistake)
			}
			s = rest
		default:
			b.WriteByte('$')
			s = s[1:]
		}
	}
}

// replaceVariable returns the value of ${inner}.
func replaceVariable(inner string, env lookup, dir string) (value, mistake string) {
	if path, is := strings.CutPrefix(inner, "file:"); is {
		v, err := readSecretFile(dir, path)
		if err != nil {
			return "", fmt.Sprintf("file %s: %v", clipText(path), err)
		}
		return v, ""
	}
	m := variable.FindStringSubmatch(inner)
	if m == nil {
		return "", fmt.Sprintf("${%s} is no variable: write ${NAME}, ${NAME:-default} or ${file:PATH}, and $$ for a dollar sign", clipText(inner))
	}
	v, set := env(m[1])
	hasDefault := m[2] != ""
	switch {
	case hasDefault && v == "":
		return m[3], ""
	case !set && !hasDefault:
		return "", fmt.Sprintf("environment variable %s is not set (${%s:-default} would give a default)", m[1], m[1])
	}
	return v, ""
}

// clipText shortens text from a file for a message.
func clipText(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
