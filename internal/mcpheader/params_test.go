package mcpheader

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParams(t *testing.T) {
	for _, tt := range []struct {
		name, schema string
		want         []Param
	}{
		{"none", `{"type":"object","properties":{"a":{"type":"string"}}}`, nil},
		{"no schema", ``, nil},
		{"boolean schema", `true`, nil},
		{"one", `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}},"required":["region"]}`,
			[]Param{{"Region", []string{"region"}, "string"}}},
		{"nested", `{"properties":{"a":{"type":"object","properties":{"b":{"x-mcp-header":"B","type":"integer"}}},"c":{"type":"boolean","x-mcp-header":"C"}}}`,
			[]Param{{"B", []string{"a", "b"}, "integer"}, {"C", []string{"c"}, "boolean"}}},
		{"siblings do not share a path", `{"properties":{"a":{"properties":{"b":{"type":"string","x-mcp-header":"1"},"c":{"type":"string","x-mcp-header":"2"}}}}}`,
			[]Param{{"1", []string{"a", "b"}, "string"}, {"2", []string{"a", "c"}, "string"}}},
		{"all token characters", `{"properties":{"a":{"type":"string","x-mcp-header":"Az09!#$%&'*+-.^_` + "`" + `|~"}}}`,
			[]Param{{"Az09!#$%&'*+-.^_`|~", []string{"a"}, "string"}}},
		{"escaped keyword", `{"properties":{"a":{"type":"string","x\u002dmcp-header":"A"}}}`,
			[]Param{{"A", []string{"a"}, "string"}}},
		{"a property of that name", `{"properties":{"x-mcp-header":{"type":"string"},"properties":{"type":"string","x-mcp-header":"P"}}}`,
			[]Param{{"P", []string{"properties"}, "string"}}},
		{"a definition of that name", `{"$defs":{"x-mcp-header":{"type":"string"}}}`, nil},
		{"inside data", `{"properties":{"a":{"type":"object","default":{"x-mcp-header":"A"},"enum":[{"x-mcp-header":"B"}],"const":{"x-mcp-header":7},"examples":[{"x-mcp-header":""}]}}}`, nil},
		{"inside text", `{"description":"say x-mcp-header","properties":{"a":{"type":"string","description":"\"x-mcp-header\":\"A\""}}}`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Params([]byte(tt.schema))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParamsRefuses(t *testing.T) {
	const a = `{"type":"string","x-mcp-header":"A"}`
	wrap := func(keyword, value string) string {
		return `{"properties":{"p":{"` + keyword + `":` + value + `}}}`
	}
	property := func(schema string) string { return `{"properties":{"p":` + schema + `}}` }
	schemas := map[string]string{
		"empty name":          property(`{"type":"string","x-mcp-header":""}`),
		"space":               property(`{"type":"string","x-mcp-header":"A B"}`),
		"colon":               property(`{"type":"string","x-mcp-header":"A:"}`),
		"line break":          property(`{"type":"string","x-mcp-header":"A\r\nB: c"}`),
		"not ASCII":           property(`{"type":"string","x-mcp-header":"É"}`),
		"name a number":       property(`{"type":"string","x-mcp-header":7}`),
		"name null":           property(`{"type":"string","x-mcp-header":null}`),
		"type number":         property(`{"type":"number","x-mcp-header":"A"}`),
		"type object":         property(`{"type":"object","x-mcp-header":"A"}`),
		"type array":          property(`{"type":"array","x-mcp-header":"A"}`),
		"type null":           property(`{"type":"null","x-mcp-header":"A"}`),
		"types":               property(`{"type":["string","null"],"x-mcp-header":"A"}`),
		"no type":             property(`{"x-mcp-header":"A"}`),
		"twice":               `{"properties":{"a":` + a + `,"b":` + a + `}}`,
		"twice in other case": `{"properties":{"a":` + a + `,"b":{"properties":{"c":{"type":"string","x-mcp-header":"a"}}}}}`,
		"root":                a,
		"root items":          `{"items":` + a + `}`,
		"properties below":    wrap("items", `{"properties":{"q":`+a+`}}`),
		"deep in a list":      wrap("allOf", `[true,{"then":{"properties":{"q":`+a+`}}}]`),
		"unknown keyword":     wrap("x-more", a),
		"too deep":            strings.Repeat(`{"properties":{"p":`, 300) + a + strings.Repeat(`}}`, 300),
		"too deep elsewhere":  `{"allOf":` + strings.Repeat(`[`, 300) + a + strings.Repeat(`]`, 300) + `}`,
	}
	for _, k := range []string{"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedProperties", "$ref"} {
		schemas[k] = wrap(k, a)
	}
	for _, k := range []string{"oneOf", "anyOf", "allOf", "prefixItems", "items"} {
		schemas[k+" list"] = wrap(k, `[{},`+a+`]`)
	}
	for _, k := range []string{"$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies"} {
		schemas[k+" map"] = wrap(k, `{"x-mcp-header":`+a+`}`)
	}
	for name, schema := range schemas {
		t.Run(name, func(t *testing.T) {
			if got, err := Params([]byte(schema)); err == nil {
				t.Errorf("accepted %s as %+v", schema, got)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	args := []byte(` { "a" : {"b":1.0,"\u0078":null, "y]}":{"b":2}} ,"c":"d","e":[{"a":1}] }`)
	want := map[string]string{"a.b": "1.0", "a.x": "null", "a.y": "", "a.y]}.b": "2", "a": `{"b":1.0,"\u0078":null, "y]}":{"b":2}}`, "c": `"d"`, "c.d": "", "e.a": "", "z": ""}
	var params []Param
	for path := range want {
		params = append(params, Param{Path: strings.Split(path, ".")})
	}
	for i, got := range Arguments(params, args) {
		if path := strings.Join(params[i].Path, "."); string(got) != want[path] {
			t.Errorf("%s: %q, want %q", path, got, want[path])
		}
	}
	for _, got := range Arguments(params, nil) {
		if got != nil {
			t.Errorf("of no arguments: %q", got)
		}
	}
}

// TestManyParams: a tool mirrors so many arguments at most.
func TestManyParams(t *testing.T) {
	for n, valid := range map[int]bool{maxParams: true, maxParams + 1: false, 10_000: false} {
		properties := make([]string, n)
		for i := range properties {
			properties[i] = fmt.Sprintf(`"p%d":{"type":"string","x-mcp-header":"P%d"}`, i, i)
		}
		got, err := Params([]byte(`{"properties":{` + strings.Join(properties, ",") + `}}`))
		if (err == nil) != valid || valid && len(got) != n {
			t.Errorf("%d annotations: %d, %v", n, len(got), err)
		}
	}
}

// BenchmarkParams is what a schema costs whose parts nest deeply around much: each byte is read once.
func BenchmarkParams(b *testing.B) {
	for _, depth := range []int{1, 95} {
		schema := []byte(strings.Repeat(`{"properties":{"a":`, depth) + `{"description":"\n","enum":[` + strings.Repeat("0,", 1<<20) + `0]}` + strings.Repeat("}}", depth))
		b.Run(fmt.Sprint(depth), func(b *testing.B) {
			b.SetBytes(int64(len(schema)))
			for b.Loop() {
				_, _ = Params(schema)
			}
		})
	}
}

// FuzzParams: no schema panics, and what is found obeys the rules.
func FuzzParams(f *testing.F) {
	f.Add([]byte(`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"properties":{"c":{"type":"integer","x-mcp-header":"C"}}}}}`))
	f.Add([]byte(`{"allOf":[{"x-mcp-header":"A"`))
	f.Fuzz(func(t *testing.T, b []byte) {
		params, err := Params(b)
		if err != nil && params != nil {
			t.Errorf("both %+v and %v", params, err)
		}
		seen := map[string]bool{}
		for _, p := range params {
			name := strings.ToLower(p.Header)
			if p.Header == "" || strings.ContainsAny(p.Header, " :\t\"(),/;<=>?@[\\]{}") || seen[name] || len(p.Path) == 0 {
				t.Errorf("found %+v", p)
			}
			seen[name] = true
		}
	})
}
