package shim

import (
	"encoding/json"
	"strings"
	"testing"
)

// news are pieces that came with an event.
func news(at int64, pieces ...string) Added {
	a := Added{At: at}
	for _, p := range pieces {
		a.Pieces = append(a.Pieces, json.RawMessage(p))
	}
	return a
}

func spell(a Added) string {
	var b strings.Builder
	for _, p := range a.Pieces {
		b.Write(p)
	}
	return b.String()
}

// What events add is kept as long as nothing is missing in between and it is little;
// else the store has to be read.
func TestAddedThen(t *testing.T) {
	large := strings.Repeat("x", mostAdded-1)
	for name, c := range map[string]struct {
		a, b Added
		want string
	}{
		"in order":          {news(3, "a", "b"), news(5, "c"), "abc"},
		"gap":               {news(3, "a"), news(5, "c"), ""},
		"repeat":            {news(3, "a"), news(3, "a"), ""},
		"then too large":    {news(3, "a"), Added{}, ""},
		"before too large":  {Added{}, news(3, "a"), ""},
		"as much as may be": {news(0, large), news(1, "b"), large + "b"},
		"too much together": {news(0, large), news(1, "bc"), ""},
	} {
		if got := spell(c.a.Then(c.b)); got != c.want {
			t.Errorf("%s: %.20q, want %.20q", name, got, c.want)
		}
	}
}

// Pieces that events share are not changed by who keeps more.
func TestAddedIsShared(t *testing.T) {
	one := news(0, "a", "b")
	one.Pieces = one.Pieces[:1]
	_ = one.Then(news(1, "c"))
	if got := string(one.Pieces[:2][1]); got != "b" {
		t.Errorf("b has become %s", got)
	}
}

// A follower takes of what came with an event what it has not had, and reads the store
// where anything before it is missing.
func TestAddedAfter(t *testing.T) {
	for name, c := range map[string]struct {
		a    Added
		n    int64
		want string
		ok   bool
	}{
		"the next":     {news(2, "a", "b"), 2, "ab", true},
		"half of it":   {news(2, "a", "b"), 3, "b", true},
		"had all":      {news(2, "a", "b"), 9, "", true},
		"gap":          {news(2, "a", "b"), 1, "", false},
		"nothing told": {Added{}, 0, "", false},
	} {
		got, ok := c.a.after(c.n)
		if s := spell(Added{Pieces: got}); s != c.want || ok != c.ok {
			t.Errorf("%s: %q, %v", name, s, ok)
		}
	}
}
