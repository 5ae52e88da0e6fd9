package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// spellOut is WriteCanonical in few words, which reads each level anew.
func spellOut(b []byte, v json.RawMessage) []byte {
	v, _ = Get(v) // without blanks
	switch {
	case IsObject(v):
		members := maps.Collect(Members(v)) // names differ
		b = append(b, '{')
		for _, name := range slices.Sorted(maps.Keys(members)) {
			b = append(AppendString(b, name), ':')
			b = append(spellOut(b, members[name]), ',')
		}
		return append(b, '}')
	case IsArray(v):
		b = append(b, '[')
		for e := range Elements(v) {
			b = append(spellOut(b, e), ',')
		}
		return append(b, ']')
	}
	if s, ok := GetString(v); ok {
		return AppendString(b, s)
	}
	return append(b, v...)
}

// FuzzCanonical: the spelling is that of the few words.
func FuzzCanonical(f *testing.F) {
	for _, v := range []string{
		`{"b":[1.0,{"d":null,"c":[]},{}],"a":"\u00e9\/\"","\u0061b":[[[]],{"x":{"z":1,"y":[2,{"k":3}]}}]}`, `[]`, `"\ud83d\ude00"`, `"\ud800"`, ` 7 `,
		` { "b" : [ 1 , 2 ] , "a" : { } } `, `[[[1],[2]],[3,[4]]]`, `{"a]":"}","b":"[{"}`,
	} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		msg, err := Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"m","params":{"v":` + v + `}}`))
		if err != nil {
			return
		}
		value, _ := Get(msg.Params, "v")
		var got bytes.Buffer
		if err := WriteCanonical(&got, value); err != nil {
			t.Fatal(err)
		}
		if want := spellOut(nil, value); !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s\n got %s\nwant %s", v, got.Bytes(), want)
		}
	})
}

// BenchmarkCanonical is what a value costs that nests deeply around much: each level costs its own bytes.
func BenchmarkCanonical(b *testing.B) {
	for _, depth := range []int{1, 900} {
		v := []byte(strings.Repeat(`{"b":1,"a":`, depth) + "[" + strings.Repeat("0,", 1<<20) + "0]" + strings.Repeat("}", depth))
		b.Run(fmt.Sprint(depth), func(b *testing.B) {
			b.SetBytes(int64(len(v)))
			for b.Loop() {
				_ = WriteCanonical(new(bytes.Buffer), v)
			}
		})
	}
}
