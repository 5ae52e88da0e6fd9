package translate

import (
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"taskgate/gateway/upstream"
	"taskgate/internal/jsonrpc"
	"taskgate/internal/mcp"
)

func TestWrapSchema(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"type":"array", "items":{"const":1.0}}`,
			`{"type":"object","properties":{"result":{"type":"array", "items":{"const":1.0}}},"required":["result"]}`},
		{`{"$schema":"s","type":"string"}`,
			`{"$schema":"s","type":"object","properties":{"result":{"type":"string"}},"required":["result"]}`},
		// Definitions move to the root, where references find them. Anchors and other documents stay.
		{`{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#name"},{"$ref":"other.json#/a"},{"$dynamicRef":"#/definitions/x"}],"$defs":{"a":{"items":{"$ref":"#\/$defs\/a"}}},"definitions":{"x":{}}}`,
			`{"$defs":{"a":{"items":{"$ref":"#\/$defs\/a"}}},"definitions":{"x":{}},"type":"object","properties":{"result":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#name"},{"$ref":"other.json#/a"},{"$dynamicRef":"#/definitions/x"}]}},"required":["result"]}`},
		// A reference to another place would be wrong there.
		{`{"anyOf":[{"$ref":"#"},{"type":"string"}]}`, ``},
		{`{"items":{"$ref":"#/properties/a"}}`, ``},
		{`{"items":{"$ref":"\u0023\/a"}}`, ``},
		{`{"$defs":{"a":{"$dynamicRef":"#/x"}}}`, ``},
		{`{"$id":"#i","items":{"$ref":"#"}}`, ``},
		// A schema with an $id is a document of its own.
		{`{"$id":"i","$ref":"#/$defs/a","$defs":{"a":{"$ref":"#"}}}`,
			`{"type":"object","properties":{"result":{"$id":"i","$ref":"#/$defs/a","$defs":{"a":{"$ref":"#"}}}},"required":["result"]}`},
		{`true`, `{"type":"object","properties":{"result":true},"required":["result"]}`},
	} {
		if got := string(wrapSchema([]byte(c.in))); got != c.want || got != "" && !json.Valid([]byte(got)) {
			t.Errorf("%s\ngot  %s\nwant %s", c.in, got, c.want)
		}
	}
}

func TestNeedsWrap(t *testing.T) {
	for schema, want := range map[string]bool{
		`{"type":"object"}`: false, `{"type":"array"}`: true, `{"type":["object","null"]}`: true, `{"anyOf":[]}`: true, `true`: true,
	} {
		if NeedsWrap([]byte(schema)) != want {
			t.Errorf("%s: %t", schema, !want)
		}
	}
}

func TestLegacyStructured(t *testing.T) {
	for _, c := range []struct {
		in      string
		wrapped bool
		want    string
	}{
		{`{"content":[]}`, true, `{"content":[]}`},
		{`{"content":[],"structuredContent":{"a":1.0}}`, false, `{"content":[],"structuredContent":{"a":1.0}}`},
		{`{"content":[],"structuredContent":{"a":1.0}}`, true, `{"content":[],"structuredContent":{"result":{"a":1.0}}}`},
		{`{"content":[],"structuredContent":null}`, false, `{"content":[{"type":"text","text":"null"}],"structuredContent":{"result":null}}`},
		{`{"structuredContent":"\u003c"}`, false, `{"structuredContent":{"result":"\u003c"},"content":[{"type":"text","text":"\"\\u003c\""}]}`},
		{`{"content":[ {"type":"image","data":""} ],"structuredContent":[1]}`, true,
			`{"content":[ {"type":"image","data":""} ,{"type":"text","text":"[1]"}],"structuredContent":{"result":[1]}}`},
		{`{"content":[{"type":"text","text":"t"}],"structuredContent":1.0}`, false, `{"content":[{"type":"text","text":"t"}],"structuredContent":{"result":1.0}}`},
		{`{"content":3,"structuredContent":1}`, false, `{"content":3,"structuredContent":{"result":1}}`},
	} {
		if got := string(legacyStructured([]byte(c.in), c.wrapped)); got != c.want {
			t.Errorf("%s %t\ngot  %s\nwant %s", c.in, c.wrapped, got, c.want)
		}
	}
}

// What tools say of tasks is the gateway's word (L4, L5).
func TestLegacyTaskSupport(t *testing.T) {
	some := func(tool json.RawMessage) bool {
		name, _ := jsonrpc.GetString(tool, "name")
		return name != "never"
	}
	for _, c := range []struct {
		in   string
		view LegacyView
		want string
	}{
		{`{"name":"a", "x":1.0}`, LegacyView{Tasks: some}, `{"name":"a", "x":1.0,"execution":{"taskSupport":"optional"}}`},
		{`{"name":"a","execution":{"taskSupport":"required","y":1.0}}`, LegacyView{Tasks: some}, `{"name":"a","execution":{"taskSupport":"optional","y":1.0}}`},
		{`{"name":"a","execution":{"taskSupport":"required","y":1.0}}`, LegacyView{Tasks: some, Requires: true}, `{"name":"a","execution":{"taskSupport":"required","y":1.0}}`},
		{`{"name":"a","execution":{"taskSupport":"forbidden"}}`, LegacyView{Tasks: some}, `{"name":"a","execution":{"taskSupport":"optional"}}`},
		{`{"name":"a","execution":{ "taskSupport" : "optional" }}`, LegacyView{Tasks: some}, `{"name":"a","execution":{ "taskSupport" : "optional" }}`},
		{`{"name":"a"}`, LegacyView{Tasks: some, Modern: true}, `{"name":"a","execution":{"taskSupport":"optional"}}`},
		{`{"name":"never"}`, LegacyView{Tasks: some}, `{"name":"never"}`},
		{`{"name":"never","execution":{"taskSupport":"optional"}}`, LegacyView{Tasks: some}, `{"name":"never"}`},
		{`{"name":"never","execution":{"taskSupport":"required","y":1.0}}`, LegacyView{Tasks: some}, `{"name":"never","execution":{"y":1.0}}`},
		{`{"name":"never","execution":{"taskSupport":"forbidden"}}`, LegacyView{Tasks: some}, `{"name":"never","execution":{"taskSupport":"forbidden"}}`},
		{`{"name":"a","execution":{"taskSupport":"required"}}`, LegacyView{}, `{"name":"a"}`},
	} {
		if got := string(legacyTool([]byte(c.in), c.view)); got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.in, got, c.want)
		}
	}
}

// What is not shaped as the protocol has it is the server's business, and passes.
func TestLegacyResultOddShapes(t *testing.T) {
	for _, method := range []string{mcp.MethodToolsList, mcp.MethodToolsCall, "x"} {
		for _, text := range []string{
			`{}`, `{"tools":3}`, `{"tools":[]}`, `{"tools":[1,"a",null]}`, `{"tools":[{"execution":3,"outputSchema":{"type":"object"}}]}`,
			`{"_meta":3}`, `{"_meta":{"a":1}}`, `{"tools":[ {"execution":{"taskSupport":"forbidden"}} ]}`,
		} {
			if got := string(LegacyResult(method, []byte(text), LegacyView{})); got != text {
				t.Errorf("%s %s became %s", method, text, got)
			}
		}
	}
}

// A result of a legacy server comes through byte for byte, and one of a modern
// server loses nothing but what only its era knows.
func TestLegacyResultKeepsTheRest(t *testing.T) {
	text := rapid.StringMatching(`[a-z<>&é]{0,6}`)
	value := rapid.OneOf(
		rapid.Map(text, func(s string) string { return string(jsonrpc.AppendString(nil, s)) }),
		rapid.SampledFrom([]string{`1.0`, `9007199254740993`, `-0`, `1e2`, `[ 1 , 2 ]`, `{"a" : null}`, `"\u003c"`, `true`}))
	rapid.Check(t, func(t *rapid.T) {
		members := rapid.MapOfN(rapid.StringMatching(`[p-z]{1,4}`), value, 0, 6).Draw(t, "members")
		result := []byte(`{"resultType":"complete","ttlMs":1,"_meta":{"` + mcp.MetaServerInfo + `":{}},"cacheScope":"public"}`)
		for name, v := range members {
			result = jsonrpc.With(result, json.RawMessage(v), name)
		}
		if got := LegacyResult("x", result, LegacyView{}); string(got) != string(result) {
			t.Fatalf("%s became %s", result, got)
		}
		kept := make(map[string]string)
		for name, v := range jsonrpc.Members(LegacyResult("x", result, LegacyView{Modern: true})) {
			kept[name] = string(v)
		}
		if !reflect.DeepEqual(kept, members) {
			t.Fatalf("%s: kept %v", result, kept)
		}
	})
}

func TestInitializeResult(t *testing.T) {
	own := json.RawMessage(`{"name":"taskgate","version":"dev"}`)
	for _, c := range []struct {
		server upstream.Description
		want   string
	}{
		{upstream.Description{Era: mcp.Legacy, Raw: []byte(`{"capabilities":{"tools":{}},"protocolVersion":"2025-03-26","serverInfo":{"name":"u"},"x":1.0}`),
			Capabilities: []byte(`{"tools":{}}`)},
			`{"capabilities":{"tools":{}},"protocolVersion":"2025-06-18","serverInfo":{"name":"u"},"x":1.0}`},
		{upstream.Description{Era: mcp.Legacy}, `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"taskgate","version":"dev"}}`},
		{upstream.Description{Era: mcp.Modern, Raw: []byte(`{"capabilities":{"prompts":{}},"ttlMs":1,"instructions":"a\u0062"}`), Capabilities: []byte(`{"prompts":{}}`), Info: []byte(`{"name":"m"}`)},
			`{"protocolVersion":"2025-06-18","capabilities":{"prompts":{}},"serverInfo":{"name":"m"},"instructions":"a\u0062"}`},
		{upstream.Description{Era: mcp.Modern, Raw: []byte(`{}`)}, `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"taskgate","version":"dev"}}`},
	} {
		if got := string(InitializeResult(mcp.Version20250618, c.server, own, nil)); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
