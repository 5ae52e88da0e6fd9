package jsonrpc

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

func TestParseID(t *testing.T) {
	for _, tt := range []struct {
		in   string
		ok   bool
		text string
	}{
		{`0`, true, "0"},
		{`-7`, true, "-7"},
		{` 12 `, true, "12"},
		{`18446744073709551617`, true, "18446744073709551617"},
		{`9007199254740993`, true, "9007199254740993"},
		{`""`, true, ""},
		{`"a"`, true, "a"},
		{`"\u0061\/é"`, true, "a/é"},
		{`"1"`, true, "1"},
		{`null`, false, ""},
		{`true`, false, ""},
		{`1.0`, false, ""},
		{`1e3`, false, ""},
		{`01`, false, ""},
		{`-`, false, ""},
		{`+1`, false, ""},
		{``, false, ""},
		{`{}`, false, ""},
		{`["a"]`, false, ""},
		{`"a`, false, ""},
		{`"a" 1`, false, ""},
		{`"\ud800"`, false, ""},
		{"\"\xff\"", false, ""},
		{`'a'`, false, ""},
	} {
		id, err := ParseID([]byte(tt.in))
		if (err == nil) != tt.ok {
			t.Errorf("ParseID(%s): error %v, want ok %v", tt.in, err, tt.ok)
		}
		if id.IsZero() == tt.ok || id.String() != tt.text {
			t.Errorf("ParseID(%s) = %q, want %q", tt.in, id, tt.text)
		}
	}
}

func mustID(t testing.TB, s string) ID {
	t.Helper()
	id, err := ParseID([]byte(s))
	if err != nil {
		t.Fatalf("ParseID(%s): %v", s, err)
	}
	return id
}

func TestParseEchoed(t *testing.T) {
	for in, want := range map[string]string{
		`7`: `7`, `"7"`: `7`, `7.0`: `7`, `7e0`: `7`, `7.0123456789012E13`: `70123456789012`, `"-3"`: `-3`, `"r-5"`: `"r-5"`, `"07"`: `"07"`, `""`: `""`,
		`7.5`: ``, `1e300`: ``, `null`: ``, `true`: ``, `[7]`: ``, ``: ``,
	} {
		id, err := ParseEchoed([]byte(in))
		if id.Raw() != want || (err == nil) != (want != "") {
			t.Errorf("%s: %s, %v", in, id.Raw(), err)
		}
	}
}

func TestIDEqual(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{`"a"`, `"\u0061"`, true},
		{`"a/b"`, `"a\/b"`, true},
		{`"\""`, `"\u0022"`, true},
		{`"😀"`, `"\ud83d\ude00"`, true},
		{`1`, `1`, true},
		{`1`, `"1"`, false},
		{`0`, `-0`, false},
		{`"a"`, `"b"`, false},
		{`18446744073709551617`, `18446744073709551616`, false},
	} {
		a, b := mustID(t, tt.a), mustID(t, tt.b)
		if got := a.Equal(b); got != tt.want {
			t.Errorf("%s equal %s: %v", tt.a, tt.b, got)
		}
		if got := a.Key() == b.Key(); got != tt.want {
			t.Errorf("keys of %s and %s equal: %v", tt.a, tt.b, got)
		}
	}
	if a := mustID(t, `"\u0061"`); a.Raw() != `"\u0061"` || a.Key() != `"a"` {
		t.Errorf("raw %s, key %s", a.Raw(), a.Key())
	}
	if (ID{}).Key() != "" || !(ID{}).Equal(ID{}) || (ID{}).Equal(StringID("")) {
		t.Error("the zero ID equals only itself")
	}
}

// Every spelling of a string is one id, and equality is that of encoding/json.
func TestIDEqualAsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		html, _ := json.Marshal(s) // escapes what StringID does not
		a, b := StringID(s), ID{}
		b, err := ParseID(html)
		if err != nil {
			t.Fatal(err)
		}
		if !a.Equal(b) || a.Key() != b.Key() || b.String() != s {
			t.Fatalf("%s and %s differ", a.Raw(), b.Raw())
		}
	})
}
