package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const sample = ` { "a" : 1.0 , "b":{ },"n":null, "c":{"d":[1,"]\\"],"\u0065":"\u003c"} } `

func TestGet(t *testing.T) {
	for _, tt := range []struct {
		obj, path, want string
		ok              bool
	}{
		{sample, "a", `1.0`, true},
		{sample, "b", `{ }`, true},
		{sample, "n", `null`, true},
		{sample, "c.d", `[1,"]\\"]`, true},
		{sample, "c.e", `"\u003c"`, true},
		{sample, "", strings.TrimSpace(sample), true},
		{sample, "x", ``, false},
		{sample, "a.x", ``, false},
		{sample, "n.x", ``, false},
		{sample, "c.d.x", ``, false},
		{`{"a":1,"a":{"x":2}}`, "a.x", `2`, true},
		{`{"a":{"x":2},"a":1}`, "a.x", ``, false},
		{`[{"a":1}]`, "a", ``, false},
		{`"a"`, "a", ``, false},
		{``, "a", ``, false},
		{`{"a":1`, "a", ``, false},
		{`{"a":1,}`, "a", ``, false},
		{`{"a":1}x`, "a", ``, false},
		{`{"a" 1}`, "a", ``, false},
		{`{"a":}`, "a", ``, false},
		{`{"a":`, "a", ``, false},
		{`{"a":["x`, "b", ``, false},
		{`{"a`, "a", ``, false},
	} {
		got, ok := Get([]byte(tt.obj), path(tt.path)...)
		if string(got) != tt.want || ok != tt.ok {
			t.Errorf("Get(%s, %s) = %s, %v", tt.obj, tt.path, got, ok)
		}
	}
	if s, ok := GetString([]byte(sample), "c", "e"); s != "<" || !ok {
		t.Errorf("GetString = %q, %v", s, ok)
	}
	if s, ok := GetString([]byte(sample), "a"); ok {
		t.Errorf("GetString of a number = %q", s)
	}
}

// Picking finds what getting one member after the other does, in any text: also one
// that is broken, or no object.
func TestPickAgreesWithGet(t *testing.T) {
	agrees := func(t rapid.TB, obj []byte, wanted []string) {
		values := []json.RawMessage{json.RawMessage("left"), json.RawMessage("over"), nil}[:len(wanted)]
		Pick(obj, wanted, values)
		for i, name := range wanted {
			if got, _ := Get(obj, name); string(values[i]) != string(got) || (values[i] == nil) != (got == nil) {
				t.Errorf("%s: %q is %s, want %s", obj, name, values[i], got)
			}
		}
	}
	for _, obj := range []string{
		sample, `{"a":1,"a":2}`, `{"a":1,"\u0061":3}`, `{"":1}`, `{}`, `[]`, ``, `"a"`, `{"a":1`, `{"a":1,}`, `{"a":1}x`, `{"b":1,"a"}`,
	} {
		agrees(t, []byte(obj), []string{"a", "", "b"})
	}
	rapid.Check(t, func(t *rapid.T) {
		obj := []byte(drawObject(t))
		wanted := rapid.SliceOfNDistinct(names, 1, 3, rapid.ID[string]).Draw(t, "names")
		agrees(t, obj[:rapid.IntRange(0, len(obj)).Draw(t, "cut")], wanted)
		agrees(t, obj, wanted)
	})
}

func TestStringOfAValue(t *testing.T) {
	for value, want := range map[string]string{`"a\u0062"`: "ab", `""`: ""} {
		if got, ok := String(json.RawMessage(value)); got != want || !ok {
			t.Errorf("String(%s) = %q, %v", value, got, ok)
		}
	}
	for _, value := range []string{``, `1`, `null`, `["a"]`, `{"a":"b"}`} {
		if got, ok := String(json.RawMessage(value)); ok {
			t.Errorf("String(%s) = %q", value, got)
		}
	}
}

func path(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '.' })
}

func TestSet(t *testing.T) {
	for _, tt := range []struct{ obj, path, want string }{
		{sample, "a", strings.Replace(sample, `1.0`, `7`, 1)},
		{sample, "b.x", strings.Replace(sample, `{ }`, `{"x":7 }`, 1)},
		{sample, "c.d", strings.Replace(sample, `[1,"]\\"]`, `7`, 1)},
		{sample, "c.e", strings.Replace(sample, `"\u003c"`, `7`, 1)},
		{sample, "n", strings.Replace(sample, `null`, `7`, 1)},
		{sample, "n.x.y", strings.Replace(sample, `null`, `{"x":{"y":7}}`, 1)},
		{sample, "z", strings.Replace(sample, `"} } `, `"},"z":7 } `, 1)},
		{sample, "z.y", strings.Replace(sample, `"} } `, `"},"z":{"y":7} } `, 1)},
		{`{}`, "<", `{"<":7}`},
		{`{"a":1,"a":2}`, "a", `{"a":1,"a":7}`},
		{sample, "a.x", ""},
		{sample, "c.d.x", ""},
		{sample, "", ""},
		{`[]`, "a", ""},
		{`{"a":1`, "a", ""},
		{`{"a":1]`, "b", ""},
	} {
		in := []byte(tt.obj)
		got, err := Set(in, []byte("7"), path(tt.path)...)
		if string(got) != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("Set(%s, %s)\n got %s, %v\nwant %s", tt.obj, tt.path, got, err, tt.want)
		}
		if string(in) != tt.obj {
			t.Errorf("Set changed its input to %s", in)
		}
	}
	if _, err := Set([]byte(`{}`), nil, "a"); err == nil {
		t.Error("Set without a value")
	}
}

func TestWithout(t *testing.T) {
	for _, tt := range []struct{ obj, path, want string }{
		{sample, "a", strings.Replace(sample, ` "a" : 1.0 , "b"`, `"b"`, 1)},
		{sample, "b", strings.Replace(sample, ` , "b":{ }`, ``, 1)},
		{sample, "c", strings.Replace(sample, `, "c":{"d":[1,"]\\"],"\u0065":"\u003c"}`, ``, 1)},
		{sample, "c.e", strings.Replace(sample, `,"\u0065":"\u003c"`, ``, 1)},
		{`{"a":1}`, "a", `{}`},
		{`{ "a":1 }`, "a", `{ }`},
		{`{"a":1,"b":2,"a":3}`, "a", `{"b":2}`},
		{`{"a":1,"a":2,"b":3}`, "a", `{"b":3}`},
		{`{"b":1,"a":2,"a":3,"c":4}`, "a", `{"b":1,"c":4}`},
		{sample, "x", sample},
		{sample, "x.y", sample},
		{sample, "a.y", sample},
		{sample, "a.y.z", sample},
		{`{"a":{"b":1}, "c":2}`, "a.b", `{"a":{}, "c":2}`},
		{`{"a":{"b":1},"a":{"b":2,"c":3}}`, "a.b", `{"a":{},"a":{"c":3}}`},
		{`[]`, "a", `[]`},
		{`[]`, "a.b", `[]`},
		{`{"a":1`, "a", `{"a":1`},
		{sample, "", sample},
	} {
		in := []byte(tt.obj)
		if got := Without(in, path(tt.path)...); string(got) != tt.want {
			t.Errorf("Without(%s, %s)\n got %s\nwant %s", tt.obj, tt.path, got, tt.want)
		}
		if string(in) != tt.obj {
			t.Errorf("Without changed its input to %s", in)
		}
	}
}

func TestIterators(t *testing.T) {
	var got []string
	for name, v := range Members([]byte(sample)) {
		got = append(got, name+"="+string(v))
		if name == "n" {
			break
		}
	}
	if d := cmp.Diff([]string{"a=1.0", "b={ }", "n=null"}, got); d != "" {
		t.Error(d)
	}
	for _, s := range []string{``, `{}`, `[`, `[,]`, `7`} {
		for e := range Elements([]byte(s)) {
			t.Errorf("Elements(%s) yields %s", s, e)
		}
	}
	for _, s := range []string{``, `[]`, `{`, `{"a"}`, `{:1}`, `7`} {
		for n, v := range Members([]byte(s)) {
			t.Errorf("Members(%s) yields %s %s", s, n, v)
		}
	}
	for _, s := range []string{`{`, " \n{}"} {
		if !IsObject([]byte(s)) {
			t.Errorf("IsObject(%s)", s)
		}
	}
	for _, s := range []string{``, ` `, `[{}]`, `"{"`} {
		if IsObject([]byte(s)) {
			t.Errorf("IsObject(%s)", s)
		}
	}
}

var (
	space  = rapid.SampledFrom([]string{"", "", "", " ", "\n\t", "\r\n  "})
	scalar = rapid.SampledFrom([]string{`1.0`, `9007199254740993`, `-0`, `1E+2`, `"\u003c"`, `"\\"`, `"\\\""`, `"}{]["`, `"é😀"`, `null`, `true`, `""`, `"a,b:c"`})
	names  = rapid.SampledFrom([]string{"a", "b", "", "é", `"`, `\`, "}", "_meta", "x/y.z"})
)

// spell writes a name in one of its spellings.
func spell(t *rapid.T, name string) string {
	quoted := string(AppendString(nil, name))
	if rapid.Bool().Draw(t, "escaped") || name == "" {
		return quoted
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range name {
		fmt.Fprintf(&b, `\u%04x`, r) // all names are in the basic plane
	}
	return b.String() + `"`
}

func drawValue(t *rapid.T, depth int) string {
	switch kind := rapid.IntRange(0, 3).Draw(t, "kind"); {
	case kind == 0 && depth > 0:
		return drawMembers(t, depth-1)
	case kind == 1 && depth > 0:
		var items []string
		for range rapid.IntRange(0, 3).Draw(t, "len") {
			items = append(items, space.Draw(t, "s")+drawValue(t, depth-1)+space.Draw(t, "s"))
		}
		return "[" + strings.Join(items, ",") + space.Draw(t, "s") + "]"
	}
	return scalar.Draw(t, "scalar")
}

func drawMembers(t *rapid.T, depth int) string {
	var items []string
	for _, name := range rapid.SliceOfNDistinct(names, 0, 5, rapid.ID).Draw(t, "names") {
		items = append(items, space.Draw(t, "s")+spell(t, name)+space.Draw(t, "s")+":"+
			space.Draw(t, "s")+drawValue(t, depth)+space.Draw(t, "s"))
	}
	return "{" + strings.Join(items, ",") + space.Draw(t, "s") + "}"
}

// drawObject draws an object in an odd spelling, without blanks around it.
func drawObject(t *rapid.T) string { return drawMembers(t, 3) }

// decode is what another reader makes of the text.
func decode(t *rapid.T, b []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return v
}

func TestGetAgreesWithEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		obj := []byte(drawObject(t))
		want := decode(t, obj).(map[string]any)
		n := 0
		for name, v := range Members(obj) {
			n++
			got, ok := Get(obj, name)
			if !ok || !bytes.Equal(got, v) || !cmp.Equal(decode(t, v), want[name]) {
				t.Fatalf("%q: Get %s, Members %s", name, got, v)
			}
		}
		if n != len(want) {
			t.Fatalf("%d members, want %d", n, len(want))
		}
	})
}

// Setting changes what is at the path and not one byte besides.
func TestSetLeavesTheRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		obj := []byte(drawObject(t))
		before := slices.Clone(obj)
		value := []byte(drawValue(t, 2))
		p := rapid.SliceOfN(names, 1, 3).Draw(t, "path")
		old, had := Get(obj, p...)
		got, err := Set(obj, value, p...)
		if !bytes.Equal(obj, before) {
			t.Fatal("input changed")
		}
		if err != nil {
			if err != errObject {
				t.Fatal(err)
			}
			return
		}
		decode(t, got)
		if v, ok := Get(got, p...); !ok || !bytes.Equal(v, value) {
			t.Fatalf("read back %s, want %s", v, value)
		}
		if had { // then setting the old value undoes it
			back, err := Set(got, old, p...)
			if err != nil || !bytes.Equal(back, obj) {
				t.Fatalf("undo: %s, %v", back, err)
			}
			return
		}
		checkInserted(t, obj, got)
	})
}

// checkInserted checks that got is obj with one run of bytes more, or with one
// null replaced.
func checkInserted(t *rapid.T, obj, got []byte) {
	i := 0
	for i < len(obj) && obj[i] == got[i] {
		i++
	}
	rest := obj[i:]
	if bytes.HasSuffix(got, rest) || bytes.HasPrefix(rest, []byte("null")) && bytes.HasSuffix(got, rest[4:]) {
		return
	}
	t.Fatalf("other bytes changed:\n%s\n%s", obj, got)
}

// Deleting what was inserted gives the text before.
func TestWithoutUndoesInsert(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		obj := []byte(drawObject(t))
		name := names.Draw(t, "name")
		without := Without(obj, name)
		want := decode(t, obj).(map[string]any)
		delete(want, name)
		if d := cmp.Diff(any(want), decode(t, without)); d != "" {
			t.Fatal(d)
		}
		with, err := Set(without, []byte(`[1]`), name)
		if err != nil {
			t.Fatal(err)
		}
		if again := Without(with, name); !bytes.Equal(again, without) {
			t.Fatalf("%s; want %s", again, without)
		}
	})
}
