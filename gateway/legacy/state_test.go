package legacy

import (
	"testing"
	"time"
)

func TestMilliseconds(t *testing.T) {
	for in, want := range map[string]time.Duration{
		`0`: 0, `1`: time.Millisecond, `60000`: time.Minute, `6e4`: time.Minute, `1000.0`: time.Second,
		`null`: 1<<63 - 1, `1e400`: 1<<63 - 1, `9223372036854775807`: 1<<63 - 1, `-0`: 0,
		`-1`: -1, `0.5`: -1, `"1"`: -1, `{}`: -1, `true`: -1, `-1e400`: -1,
	} {
		got, ok := readMilliseconds([]byte(in))
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%s: %v, want %v", in, got, want)
		}
	}
}

func TestLoudEnough(t *testing.T) {
	for _, c := range []struct {
		level, want string
		ok          bool
	}{{"debug", "", true}, {"debug", "info", false}, {"info", "info", true}, {"alert", "info", true}, {"odd", "emergency", true}} {
		if loudEnough(c.level, c.want) != c.ok {
			t.Errorf("%q at %q: %t", c.level, c.want, !c.ok)
		}
	}
}
