package config

import (
	"fmt"
	"regexp"
	"strings"
)

// lookup finds an environment variable; os.LookupEnv is one.
type lookup func(name string) (value string, set bool)

// marker is a part of a value that is replaced, or lacks its end; variable is the form of the text between the braces.
var (
	marker   = regexp.MustCompile(`\$(\$|\{[^}]*}?)`)
	variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)(:-(.*))?$`)
)

// expandValue replaces ${NAME}, ${NAME:-default}, ${file:PATH} and $$ in a value; relative paths begin at
// dir. Replaced text is final. It reports all mistakes; they name variables and files, and keep the
// values secret.
func expandValue(s string, env lookup, dir string) (value string, mistakes []string) {
	value = marker.ReplaceAllStringFunc(s, func(found string) string {
		if found == "$$" {
			return "$"
		}
		inner, closed := strings.CutSuffix(found[len("${"):], "}")
		if !closed {
			mistakes = append(mistakes, "${ without }; write $$ for a dollar sign")
			return ""
		}
		v, mistake := replaceVariable(inner, env, dir)
		if mistake != "" {
			mistakes = append(mistakes, mistake)
		}
		return v
	})
	return value, mistakes
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
