package jsonrpc

import (
	"encoding/json"
	"testing"
	"unicode/utf8"
)

func TestEdit(t *testing.T) {
	f := func(name string, value json.RawMessage) json.RawMessage {
		switch name {
		case "drop":
			return nil
		case "set":
			return json.RawMessage(`"new"`)
		}
		return value
	}
	for in, want := range map[string]string{
		`{}`:                                     `{}`,
		`{ }`:                                    `{ }`,
		` {"a" : 1.0 , "b":[ ]} `:                ` {"a" : 1.0 , "b":[ ]} `,
		`{"drop":1}`:                             `{}`,
		`{"drop":1,"drop":2}`:                    `{}`,
		`{ "drop":1 , "a":2}`:                    `{"a":2}`,
		`{"drop":1,"set":2,"drop":3 ,"a":4}`:     `{"set":"new" ,"a":4}`,
		`{"a":1,"drop":2}`:                       `{"a":1}`,
		`{"a":1, "drop":2 }`:                     `{"a":1 }`,
		`{"a":1 ,"set" : 2, "b":"\u003c"}`:       `{"a":1 ,"set" : "new", "b":"\u003c"}`,
		`{"s\u0065t":{"drop":1},"x":{"drop":1}}`: `{"s\u0065t":"new","x":{"drop":1}}`,
		`[{"drop":1}]`:                           `[{"drop":1}]`,
		`7`:                                      `7`,
		`{"drop":1`:                              `{"drop":1`,
	} {
		if got := string(Edit([]byte(in), f)); got != want {
			t.Errorf("Edit(%s)\ngot  %s\nwant %s", in, got, want)
		}
	}
}

// FuzzEdit: dropping by Edit is what Without does, and what is read back is what f
// returned.
func FuzzEdit(f *testing.F) {
	f.Add(`{"a":1,"b":{"a":2}, "c":[1.0]}`, "a")
	f.Add(`{ "a":1 , "a":2 }`, "a")
	f.Fuzz(func(t *testing.T, s, name string) {
		if !json.Valid([]byte(s)) || !IsObject([]byte(s)) || !utf8.ValidString(s+name) {
			return // a name that is not UTF-8 has no decoded form to compare
		}
		dropped := Edit([]byte(s), func(n string, v json.RawMessage) json.RawMessage {
			if n == name {
				return nil
			}
			return v
		})
		if without := Without([]byte(s), name); string(without) != string(dropped) {
			t.Fatalf("%s: %s, Without says %s", s, dropped, without)
		}
		set := Edit([]byte(s), func(n string, v json.RawMessage) json.RawMessage {
			if n == name {
				return json.RawMessage(`["x"]`)
			}
			return v
		})
		if !json.Valid(set) || !json.Valid(dropped) {
			t.Fatalf("%s became %s and %s", s, set, dropped)
		}
		if _, had := Get([]byte(s), name); had {
			if v, _ := Get(set, name); string(v) != `["x"]` {
				t.Fatalf("%s: %s", s, set)
			}
		}
	})
}

func TestExtended(t *testing.T) {
	for in, want := range map[string]string{
		`{}`:                  `{"x":1}`,
		`{ }`:                 `{"x":1 }`,
		` {"a":{} , "b":[]} `: ` {"a":{} , "b":[],"x":1} `,
		`{"a":{ } }`:          `{"a":{ },"x":1 }`,
		`[]`:                  `[]`,
		``:                    ``,
	} {
		if got := string(Extended([]byte(in), []byte(`"x":1`)).Text()); got != want {
			t.Errorf("Extended(%s)\ngot  %s\nwant %s", in, got, want)
		}
	}
	if got := string(Extended([]byte(`{"a":1}`), nil).Text()); got != `{"a":1}` {
		t.Errorf("Extended by nothing: %s", got)
	}
}
