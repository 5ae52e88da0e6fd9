package config_test

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"taskgate/gateway/config"
)

// limitKey matches the keys that bound something, besides those in rate.
var limitKey = regexp.MustCompile(`^(max_\w+|\w+_timeout|timeout|\w+_bytes|concurrency|rate)$`)

// Every key that bounds something is in the table of docs/operations.md, with its default.
func TestLimitsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\S+) \\|.*\\|.*\\|$").FindAllStringSubmatch(string(text), -1) {
		documented[m[1]] = m[2]
	}
	defaults := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ *#?(\w+): +([^\s{]\S*)$`).FindAllStringSubmatch(readExample(t), -1) {
		defaults[m[1]] = m[2]
	}
	keys := map[string]bool{}
	for _, part := range []reflect.Type{reflect.TypeFor[config.Config](), reflect.TypeFor[config.Upstream](), reflect.TypeFor[config.Tool]()} {
		for i := range part.NumField() {
			name, _, _ := strings.Cut(part.Field(i).Tag.Get("yaml"), ",")
			if limitKey.MatchString(name) {
				keys[name] = true
			}
		}
	}
	for key := range keys {
		if documented[key] == "" || documented[key] != defaults[key] {
			t.Errorf("%s: the documented default is %q, want %q", key, documented[key], defaults[key])
		}
	}
	for key := range documented {
		if !keys[key] {
			t.Errorf("%s is documented as a limit, and is no key of one", key)
		}
	}
	if len(keys) < 10 {
		t.Errorf("found only %d limits", len(keys))
	}
}
