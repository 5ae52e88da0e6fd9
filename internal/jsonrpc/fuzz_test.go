package jsonrpc

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

// FuzzParse: no input panics, and what a client may send a server may send too,
// with the same meaning.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":0,"method":"m","params":{"a":[1.0,{"b":"\ud83d\ude00"}]}}`,
		`{"jsonrpc":"2.0","id":"\u0061","result":{"a":1,"a":2}}`,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"x","data":null}}`,
		`[{"jsonrpc":"2.0","method":"m"}]`,
		"{\"jsonrpc\":\"2.0\",\"\xff\":1}",
		`{`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		strict, serr := Parse(b)
		lenient, lerr := ParseLenient(b)
		if lerr == nil && !json.Valid(b) {
			t.Errorf("accepted, but not JSON: %q", b)
		}
		if serr != nil {
			return
		}
		if lerr != nil {
			t.Fatalf("strict accepts, lenient does not: %v", lerr)
		}
		if d := cmp.Diff(strict, lenient, cmpMessage); d != "" {
			t.Error(d)
		}
		if id, err := ParseID([]byte(strict.ID.Raw())); !strict.ID.IsZero() && (err != nil || id != strict.ID) {
			t.Errorf("id %s does not read back", strict.ID.Raw())
		}
	})
}

// FuzzPick: the members that a parse has noted are those that are found by reading again.
func FuzzPick(f *testing.F) {
	for _, s := range []string{
		`{"isError":true,"_meta":{"a":1},"content":[{"isError":1}]}`, ` {"_meta":1,"\u005fmeta":2 , "isError" : null} `, `{}`, `[{"isError":1}]`, `1`,
		`{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1,"10":1,"11":1,"12":1,"13":1,"14":1,"isError":1}`,
		`{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1,"10":1,"11":1,"12":1,"13":1,"14":1,"15":1,"isError":1}`,
	} {
		f.Add([]byte(s))
	}
	large, _ := json.Marshal(strings.Repeat("x", largePayload))
	names := []string{"isError", "_meta", "large", ""}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, payload := range []json.RawMessage{b, With(b, large, "large")} {
			for _, head := range []string{`{"jsonrpc":"2.0","id":1,"result":`, `{"jsonrpc":"2.0","method":"m","params":`} {
				m, err := ParseLenient(slices.Concat([]byte(head), payload, []byte(`,"error":null,"other":{"isError":2}}`)))
				if err != nil {
					continue
				}
				for range 2 {
					want, got := make([]json.RawMessage, len(names)), make([]json.RawMessage, len(names))
					Pick(slices.Concat(m.Params, m.Result), names, want)
					m.Pick(names, got)
					if d := cmp.Diff(want, got); d != "" {
						t.Errorf("%q: %s", m.Raw, d)
					}
					m.Params, m.Result = With(m.Params, []byte("7"), "isError"), With(m.Result, []byte("7"), "isError")
				}
			}
		}
	})
}

// FuzzCheck: a text is taken if another reader takes it.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{
		`{"a":[1.0e+5,-0,{"b":"\ud83d\ude00","\u0062":0}],"c":{}}`, `{"a":1,"a":2}`, `"\ud800\u0041"`, `"\udc00"`, `"\ud800\ud800"`,
		`"long enough for more than eight bytes \"\\\/\b\f\n\r\t and more"`, "\"a control \x1f character\"", "\"12345678\xff\"",
		` [ true , false , null ] `, `tru`, `-`, `01`, `1.`, `1e`, `.5`, `[1,]`, `{"a" 1}`, `{"a":}`, `[1}`, `"\x"`, `"\u12g4"`, `1 2`,
		`{"1":1,"2":1,"3":1,"4":1,"5":1,"6":1,"7":1,"8":1,"9":1,"10":1,"11":1,"12":1,"13":1,"14":1,"13":1}`, ``,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, strict := range []bool{true, false} {
			w := newWalker(b, strict)
			end := -1
			if !strict || utf8.Valid(b) {
				end = w.checkValue(skipSpace(b, 0))
			}
			got := end >= 0 && skipSpace(b, end) == len(b)
			// Lone surrogates are taken but in names. jsontext takes them nowhere, or with any other invalid UTF-8.
			all, unique := jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(!strict)
			must := jsontext.Value(b).IsValid(unique, jsontext.AllowInvalidUTF8(!strict))
			may := jsontext.Value(b).IsValid(unique, all) && (!strict || utf8.Valid(b))
			if (must && !got || got && !may) && w.reason != reasonDeep {
				t.Errorf("strict %v: taken %v (%q), may be %v, must be %v: %q", strict, got, w.reason, may, must, b)
			}
			if got && w.depth != 0 {
				t.Errorf("depth %d behind %q", w.depth, b)
			}
		}
	})
}

// FuzzSplice: no input panics or is changed; on valid JSON a member set is a
// member got, and one without which it is copied is gone.
func FuzzSplice(f *testing.F) {
	f.Add([]byte(sample), "a", "b")
	f.Add([]byte(`{"a":{"b":1,"b":2},"a":{"b":3}}`), "a", "b")
	f.Add([]byte(`{"a":"\\\"","\u0062":[}`), "b", "")
	f.Fuzz(func(t *testing.T, b []byte, p, q string) {
		// Names that are not UTF-8 cannot be written, and so not be read back.
		p, q = string([]rune(p)), string([]rune(q))
		before := slices.Clone(b)
		for range Elements(b) {
			continue
		}
		for range Members(b) {
			continue
		}
		set, serr := Set(b, []byte(`[0]`), p, q)
		without := Without(b, p, q)
		if !bytes.Equal(b, before) {
			t.Fatal("input changed")
		}
		if !json.Valid(b) {
			return
		}
		if got, ok := Get(set, p, q); serr == nil && (!json.Valid(set) || !ok || string(got) != `[0]`) {
			t.Errorf("after Set: %s", set)
		}
		if _, ok := Get(without, p, q); !json.Valid(without) || ok {
			t.Errorf("after Without: %s", without)
		}
	})
}
