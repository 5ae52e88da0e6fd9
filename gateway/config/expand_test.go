package config

import (
	"slices"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"plain", "plain"},
		{"${SECRET}", secret},
		{"a${SECRET}b${SEVEN}c", "a" + secret + "b7c"},
		{"${EMPTY}", ""},
		{"${EMPTY:-x}", "x"},
		{"${UNSET:-x}", "x"},
		{"${UNSET:-}", ""},
		{"${UNSET:-a:-b $ c}", "a:-b $ c"},
		{"${SEVEN:-x}", "7"},
		{"$${SEVEN}", "${SEVEN}"},
		{"$$$${SEVEN}", "$${SEVEN}"},
		{"$$${SEVEN}", "$7"},
		{"$SEVEN", "$SEVEN"},
		{"100$", "100$"},
		{"$", "$"},
		{"pa$word}", "pa$word}"},
		{"${TREE}", "{a: 1} # b\nc: d"},
		{"a${file:value}b$$", "av ${SEVEN}b$"}, // what it holds is not looked at again, and its end is trimmed
	} {
		got, mistakes := expandValue(tt.in, testEnv, "testdata")
		if got != tt.want || len(mistakes) > 0 {
			t.Errorf("expand(%q) = %q, %q; want %q", tt.in, got, mistakes, tt.want)
		}
	}
}

// Replacing happens once: a variable cannot ask for another one.
func TestExpandOnce(t *testing.T) {
	env := func(name string) (string, bool) { return "${OTHER}$$", name == "A" }
	if got, mistakes := expandValue("${A}", env, ""); got != "${OTHER}$$" || mistakes != nil {
		t.Errorf("got %q, %q", got, mistakes)
	}
}

func TestExpandMistakes(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want []string // the beginning of each mistake
	}{
		{"${UNSET}", []string{"environment variable UNSET is not set"}},
		{"${A}${SEVEN}${B}", []string{"environment variable A", "environment variable B"}},
		{"${", []string{"${ without }"}},
		{"${A", []string{"${ without }"}},
		{"${}", []string{"${} is no variable"}},
		{"${1}", []string{"${1} is no variable"}},
		{"${A-b}", []string{"${A-b} is no variable"}},
		{"${ A}", []string{"${ A} is no variable"}},
		{"${A:?}", []string{"${A:?} is no variable"}},
		{"${file:absent}", []string{"file absent: cannot be read: no such file"}},
		{"${file:mistakes}", []string{"file mistakes: cannot be read: not a regular file"}},
		{"${file:}", []string{"file : cannot be read: not a regular file"}},
		{"${UNSET}${", []string{"environment variable UNSET", "${ without }"}},
	} {
		_, got := expandValue(tt.in, testEnv, "testdata")
		if !slices.EqualFunc(got, tt.want, strings.HasPrefix) {
			t.Errorf("expand(%q): mistakes %q, want %q", tt.in, got, tt.want)
		}
	}
}

// Escaping every dollar sign gives back any text; and mistakes never show what
// a variable holds.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "$", "$$", "${A}", "${A:-b}", "${A}${", "a${SECRET}b", "${${SECRET}}", "${\xff}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, mistakes := expandValue(strings.ReplaceAll(s, "$", "$$"), testEnv, t.TempDir()); got != s || mistakes != nil {
			t.Errorf("escaped %q became %q, %q", s, got, mistakes)
		}
		_, mistakes := expandValue(s, testEnv, t.TempDir())
		if strings.Contains(strings.Join(mistakes, ""), secret) && !strings.Contains(s, secret) {
			t.Errorf("expand(%q) shows a value: %q", s, mistakes)
		}
	})
}
